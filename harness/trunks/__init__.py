"""Trunks: networks from images to feature maps."""
