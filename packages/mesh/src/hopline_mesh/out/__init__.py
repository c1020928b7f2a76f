"""The outputs of the watch: alerts, gRPC, metrics, a JSON API and a page.

All of them read one `Board`, to which the watch publishes each verdict.
"""
