"""What a model sees of a data set: images or features, batches of them, their way to the device."""
