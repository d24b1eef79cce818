"""Terms of the score, one file each."""
