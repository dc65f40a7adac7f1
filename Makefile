# The house's commands; each is a script that can be read and run by itself.
.PHONY: help demo test model bench

help:
	@echo 'make demo   fetch the demo model, build, serve it on 127.0.0.1:8000 (PORT=...) and try it'
	@echo 'make test   everything that CI runs'
	@echo 'make model  fetch the demo model into the cache and print its path'
	@echo 'make bench  criterion benchmarks, then the side-by-side table (QUICK=1 for a short run)'

demo:
	@server/demo.sh

test:
	@.ci/run

model:
	@models/fetch-demo.sh

bench:
	@benches/run.sh
