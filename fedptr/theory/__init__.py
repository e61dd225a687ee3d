"""Problems with known optima and constants, and FedPTR's theorem measured on them."""
