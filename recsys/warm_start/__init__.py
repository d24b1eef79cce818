"""Warm start: a training that goes on from an earlier model, whose rows follow their ids."""
