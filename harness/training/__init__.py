"""One configuration on one fold, or on all of them."""
