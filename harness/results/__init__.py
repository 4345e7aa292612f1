"""What is written and what is read from it: records, tables, comparisons. Never imports torch."""
