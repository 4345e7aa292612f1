"""The machine: devices, processes, files, random streams, and what long work says of itself."""
