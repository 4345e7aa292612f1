"""What the loss systems share; nothing in here is a system of its own."""
