# Two commands do everything: `make chat` and `make test`. Both set up .venv first.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	2>/dev/null && { echo $$p; break; }; done)
CXX ?= c++
BIN := .venv/bin
# What an installation depends on; Python files are used where they lie.
BUILD_INPUTS := pyproject.toml setup.py $(shell find native -name '*.[ch]*')
CXX_FILES = $(shell find native tests/native -name '*.cpp' -o -name '*.hpp' -o -name '*.h')

.PHONY: chat test install lint sanitize clean

chat: install
	@$(BIN)/pamx chat

test: .venv/dev lint sanitize
	$(BIN)/python -m pytest

# One stamp for each kind of installation, so that asking for the other kind installs again.
KIND := $(if $(PAMX_NO_NATIVE),plain,native)

install: .venv/installed-$(KIND)

.venv/bin/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "make: Python 3.11 or later was not found; install it, or say make PYTHON=/path/to/python" >&2; \
		exit 1; fi
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo "make: $(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv" >&2; \
		exit 1; }

.venv/installed-$(KIND): .venv/bin/python $(BUILD_INPUTS)
	@echo "Installing pamx into .venv ..." >&2
	@rm -f .venv/installed-* pamx/native/_pamx*.so
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . >&2
	@touch $@

.venv/dev: .venv/bin/python $(BUILD_INPUTS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch .venv/installed-$(KIND) $@

# ---- checks, all part of `make test` --------------------------------------------------------

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	PAMX_WERROR=1 $(BIN)/python setup.py --quiet build_ext --force --build-temp build/werror \
		--build-lib build/werror/lib

# The kernels, the worker pool and the batch checks need no MLX and no Python, so they run under
# AddressSanitizer and UBSan as a program of their own.
SANITIZED := $(shell find tests/native native/core native/cpu -name '*.cpp')
SANITIZE_FLAGS = -std=c++20 -O1 -g -Wall -Wextra -Werror -ffp-contract=off -Inative -Inative/include \
	-fsanitize=address,undefined -fno-sanitize-recover=all -pthread

# The same flags for the same suffixes as in setup.py.
ifeq ($(shell uname -m),x86_64)
ISA_FLAGS.avx2 = -mavx2 -mfma -mf16c
ISA_FLAGS.avx512 = $(ISA_FLAGS.avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
else ifeq ($(shell uname -m),aarch64)
ISA_FLAGS.neon = -march=armv8.2-a+dotprod
endif

sanitize: build/sanitize/run
	PAMX_CPU_ISA=portable $<
	$<

build/sanitize/run: $(SANITIZED:%.cpp=build/sanitize/%.o)
	$(CXX) $(SANITIZE_FLAGS) $^ -o $@

build/sanitize/%.o: %.cpp $(shell find native -name '*.h*')
	@mkdir -p $(@D)
	$(CXX) $(SANITIZE_FLAGS) $(ISA_FLAGS$(suffix $(subst _,.,$(basename $(notdir $<))))) -c $< -o $@

clean:
	rm -rf .venv build dist *.egg-info pamx/native/*.so
