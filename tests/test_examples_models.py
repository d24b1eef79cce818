"""The examples of a model and a loss of one's own, run."""

from examples import custom_loss, custom_model


def test_the_custom_model_learns():
    losses = custom_model.main()
    assert losses[-1] < 0.8 * losses[0]


def test_the_custom_loss_is_a_hinge():
    assert custom_loss.main() == (0.0, 0.5)
