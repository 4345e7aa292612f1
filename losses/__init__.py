"""Loss systems as pytorch-metric-learning classes, one system per file."""
