"""Records of answers: the prediction log, drift, traces and the access log."""
