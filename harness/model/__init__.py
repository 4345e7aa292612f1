"""The network: trunk, pooling, norm and head."""
