"""Evaluation protocols: everything that two results must share to be compared."""

if __name__ == "protocols":  # a second copy of every class, if it were imported
    raise ImportError("the protocols are imported as `harness.protocols`, not as `protocols`")
