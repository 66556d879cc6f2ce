"""The benchmark against peers: what is measured (matrix), how (runner), and what is made of it (results to page)."""
