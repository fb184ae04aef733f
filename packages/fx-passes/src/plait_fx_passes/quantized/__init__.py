"""Products of quantized matrices: in integers, or with weights that stay packed."""
