"""One plan, or the roll-outs of a training, over several workers: who does what, and Ray."""
