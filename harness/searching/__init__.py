"""The Optuna study of a method and the workers that share it."""
