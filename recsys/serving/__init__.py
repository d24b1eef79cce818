"""What a bundle computes, how it is checked and how it is asked; TensorFlow lives here."""
