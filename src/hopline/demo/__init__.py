"""`hopline demo`: a payment network with fraud rings, from nothing to a served score.

Read in this order: `network` (what is generated), `learning` (the model), `recipe` (generate, train,
package, once), `process` (the server as a child process), `screen` (what people see), `show` (all of it).
"""
