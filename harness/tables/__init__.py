"""Tables made from records, as CSV, Markdown, LaTeX and text."""
