"""Data sets: each file lists images, labels and superclasses; splitting is the protocol's."""
