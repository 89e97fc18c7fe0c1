"""The description of the API at /openapi.json: each route with its bodies, parameters and answers."""
