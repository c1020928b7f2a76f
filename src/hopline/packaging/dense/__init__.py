"""Dense forms of convolutions, which are faster than the code of their messages: attention."""
