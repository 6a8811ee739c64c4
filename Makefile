# make demo   pictures with and without token merging; make demo-all more of them, of a transformer, too
# make test   lint, types and the tests of every commit; make test-all the slow sweeps too
#             (both Paddle versions, one after the other: .ci/run)
# make dist   the package as it is published, into dist/: checked, installed into a fresh environment and run there
# make test-newer SOURCE=path/to/ppdiffusers
#             the tests of all models on another ppdiffusers, such as 0.29.1, which brings FLUX, SD 3.5 and videos; the
#             folder of its source that holds setup.py and ppdiffusers/ (CONTRIBUTING.md says where it is from)
# make docs   the documentation site, in English and Chinese, into outputs/site; every link, anchor and picture is checked
# Each makes its own virtual environment on the first run and installs nothing on the second.

FITS := import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10; do \
	$$p -c '$(FITS)' >/dev/null 2>&1 && echo $$p && break; done)
PADDLE ?= 3.3.1
VENV ?= .venv
DOCS_VENV ?= .venv-docs
# Processes that share the tests, a file each at a time. After one that crashed, xdist would start another and then may
# wait for ever, so the run ends there and names the test.
JOBS ?= 2
SHARED := -n $(JOBS) --dist loadfile --max-worker-restart 0
BIN := $(VENV)/bin
# What Paddle's version has no part in is tested with the newest alone; of the tools the small model stands for
# the rest, which test-all runs.
CHOSEN := tests
ifneq ($(filter 2.6.%,$(PADDLE)),)
CHOSEN := $(addprefix tests/,api compilation patching denoisers merging newer pipelines tuning) \
	tests/tools/test_small_models.py -m "not sweep and not once"
endif

define PYTHON_FITS
@$(or $(PYTHON),false) -c '$(FITS)' || \
	{ echo "Python 3.10, 3.11 or 3.12 is needed; name one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
endef

.PHONY: demo demo-all test test-all test-newer lint docs dist clean
.DELETE_ON_ERROR:

COMPARE := $(BIN)/ppdiffusers-tome compare --overwrite --output outputs
ASTRONAUT := --prompt "a photo of an astronaut"
COMPILE := $(if $(filter 2.6.%,$(PADDLE)),,--compile)
CACHE := outputs/demo-all/cache=0.2.json
MOTORCYCLE := --image examples/motorcycle.jpg --prompt "a photo of a motorcycle"

# One pair of images each; ROOM/compare.png is a sheet, compare.md the table.
demo: $(VENV)/ready
	@echo "1 of 2, text-to-image: unmerged beside balanced, about a minute ..."
	@$(COMPARE)/demo/text-to-image $(COMPILE) $(ASTRONAUT)
	@echo "first picture: outputs/demo/text-to-image/compare.png"
	@echo "2 of 2, ControlNet: unmerged beside balanced, about a minute ..."
	@$(COMPARE)/demo/controlnet $(COMPILE) $(MOTORCYCLE)
	@echo "open outputs/demo/text-to-image/compare.png and outputs/demo/controlnet/compare.png"
	@echo "next: source $(BIN)/activate, then python examples/play $(COMPILE)"

# More prompts and settings, and the unmerged model with as many steps as the cache computes.
demo-all: $(VENV)/ready
	@mkdir -p outputs/demo-all
	@$(BIN)/python -c "import ppdiffusers_tome; ppdiffusers_tome.ToMeConfig(0, cache=0.2).save('$(CACHE)')"
	$(COMPARE)/demo-all/text-to-image --ratios 0.5 --configs balanced $(CACHE) --fewer-steps 8 \
		$(ASTRONAUT) --prompt "a photo of a cat" --prompt "a photo of a cup of coffee"
	$(COMPARE)/demo-all/controlnet --ratios 0.5 --configs balanced $(CACHE) --fewer-steps 8 $(MOTORCYCLE)
	$(COMPARE)/demo-all/transformer --model dit --configs $(CACHE) --fewer-steps 8 \
		--prompt astronaut --prompt cat
	@echo "open outputs/demo-all/text-to-image/compare.png, outputs/demo-all/controlnet/compare.png and" \
		"outputs/demo-all/transformer/compare.png"

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(CHOSEN) $(SHARED)

test-all: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests $(SHARED) -m ""

# Without the flag ppdiffusers 0.29.1 calls a GPU's kernel on a CPU, too.
test-newer: $(VENV)/ready-for-tests
	@test -f "$(SOURCE)/ppdiffusers/__init__.py" || { echo "SOURCE=$(SOURCE) holds no ppdiffusers/__init__.py;" \
		"give the folder of a ppdiffusers' source that holds setup.py and ppdiffusers/"; exit 1; }
	OMP_NUM_THREADS=1 FLAGS_sdpa_select_math=yes PYTHONPATH="$(abspath $(SOURCE))" $(BIN)/python -m pytest tests/newer tests/denoisers tests/patching/test_methods.py $(SHARED) -m "" -rs

lint: $(VENV)/ready-for-tests
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DOCS_VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict
	@echo "outputs/site/index.html; look at it with: $(DOCS_VENV)/bin/mkdocs serve"

# Needs no Paddle: what the site says of the package is read off its files.
$(DOCS_VENV)/ready: docs/requirements.txt
	$(PYTHON_FITS)
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

dist:
	$(PYTHON_FITS)
	.ci/dist $(PYTHON)

# Byte code comes with the first import of a module: most are never imported, and it would take half of the time.
$(VENV)/ready: requirements.txt setup.py
	$(PYTHON_FITS)
	@echo "installing Paddle and ppdiffusers into $(VENV), some minutes and 2.5 GB ..."
	$(PYTHON) -m venv $(VENV)
	sed 's/^paddlepaddle==[^ ]*/paddlepaddle==$(PADDLE)/' requirements.txt > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r $(VENV)/requirements.txt
	@# Without compat, beside a clone named as the package, its folder would be imported in the package's place.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --config-settings editable_mode=compat \
		--editable .
	@# opencv-python needs the system's libGL; where that is missing, the headless build of the same version serves.
	@$(BIN)/python -c 'import cv2' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-deps --force-reinstall opencv-python-headless==4.10.0.84
	@touch $@

$(VENV)/ready-for-tests: $(VENV)/ready tests/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $@

clean:
	rm -rf $(VENV) $(DOCS_VENV) outputs dist build
