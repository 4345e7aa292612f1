"""Turns test records into judgements: typed data that every view takes its answers from."""
