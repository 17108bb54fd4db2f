"""Flight Recorder dumps as they lie in a folder: which file is of which rank and moment, and what PyTorch's analyser has printed of them."""
