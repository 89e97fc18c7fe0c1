"""The wire: routes, streams and errors as HTTP has them."""
