"""What made a bundle: what its manifest tells, wherever it lies, and what ML Metadata adds."""
