"""Everything that leaves the watch: alerts, gRPC, metrics, a JSON API and a page.

All of it reads one `Board`, to which the watch publishes each verdict.
"""
