# Two commands do everything: `make chat` and `make test`. Both set up .venv first.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	2>/dev/null && { echo $$p; break; }; done)
CXX ?= c++
BIN := .venv/bin
# What an installation depends on; Python files are used where they lie.
BUILD_INPUTS := pyproject.toml setup.py $(shell find native -name '*.[chm]*' -o -name '*.py') \
	$(wildcard shaders/*)
CXX_FILES = $(shell find native tests/native tests/metal/softmetal tests/metal/host \( -name '*.cpp' \
	-o -name '*.hpp' -o -name '*.h' -o -name '*.mm' -o -name '*.c' \) ! -path '*/stubs/*')

.PHONY: chat test test-metal-all test-metal-mac install lint sanitize tsan test-neon metal-tools clean

chat: install
	@$(BIN)/pamx chat

test: .venv/dev lint sanitize tsan test-neon metal-tools
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Every specialisation of the shaders; `make test` takes a covering set.
test-metal-all: .venv/dev metal-tools
	$(BIN)/python -m pytest -m metal_all tests/metal

# On a Mac: the Metal suite on the GPU, and build/metal-report.md to attach to an issue.
test-metal-mac: .venv/dev
	@[ "$$(uname -s)" = Darwin ] || { echo "make: this needs a Mac; here, make test runs the same tests in software" >&2; exit 1; }
	PYTHONPATH=tests $(BIN)/python -m metal.host.report

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
	@echo "Installing pamx into .venv, and compiling its library: about a minute ..." >&2
	@rm -f .venv/installed-* pamx/native/_*.so
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

# All that is native but native/mlx and native/blas needs no MLX and no Python, so tests/native
# makes a program of it, which is built in three ways: under AddressSanitizer and UBSan, under
# ThreadSanitizer, and for Arm. It runs once for each instruction set; one that the processor lacks
# says so and passes.
NATIVE_TEST := $(shell find tests/native native -name '*.cpp' ! -path 'native/mlx/*' \
	! -path 'native/blas/*' ! -path 'native/metal/*' \
	! -path 'native/building/*')
NATIVE_HEADERS := $(shell find native tests/native -name '*.h*')
NATIVE_TEST_FLAGS = -std=c++20 -g1 -Wall -Wextra -Werror -ffp-contract=off -Inative \
	-Inative/include -pthread
FLAGS.asan = -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
FLAGS.tsan = -O1 -fsanitize=thread
FLAGS.neon = -O2 -static
CXX.asan = $(CXX)
CXX.tsan = $(CXX)
NEON_CXX ?= aarch64-linux-gnu-g++
NEON_RUN ?= qemu-aarch64
CXX.neon = $(NEON_CXX)

# The same flags for the same suffixes as in setup.py.
MACHINE := $(shell uname -m)
PARALLEL = $(MAKE) --no-print-directory -j$(shell getconf _NPROCESSORS_ONLN)
ISA_FLAGS.x86_64.avx2 = -mavx2 -mfma -mf16c
ISA_FLAGS.x86_64.avx512 = $(ISA_FLAGS.x86_64.avx2) \
	-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
ISA_FLAGS.aarch64.neon = -march=armv8.2-a+dotprod
isa_flags = $(ISA_FLAGS.$(if $(filter neon,$(1)),aarch64,$(MACHINE)).$(lastword $(subst _, ,$(basename $(notdir $(2))))))

sanitize:
	@$(PARALLEL) build/asan/run
	for isa in portable avx2 avx512 neon; do PAMX_CPU_ISA=$$isa build/asan/run || exit; done

# Its memory layout does not bear the randomisation that recent kernels do.
tsan:
	@$(PARALLEL) build/tsan/run
	$(shell setarch -R true 2>/dev/null && echo setarch -R) build/tsan/run

# Installs packages of Debian where that needs nobody's password, and is quiet where it does not.
apt_install = if command -v apt-get >/dev/null; then \
	if [ "$$(id -u)" = 0 ]; then as=; else as="sudo -n"; fi; \
	if $$as true 2>/dev/null; then { $$as apt-get update -qq && \
	$$as env DEBIAN_FRONTEND=noninteractive apt-get install -qq $(1); } >/dev/null || true; fi; fi

NEON_PACKAGES := g++-aarch64-linux-gnu qemu-user

test-neon:
	@if ! command -v $(NEON_CXX) >/dev/null || ! command -v $(NEON_RUN) >/dev/null; then \
		$(call apt_install,$(NEON_PACKAGES)); fi
	@if command -v $(NEON_CXX) >/dev/null && command -v $(NEON_RUN) >/dev/null; then \
		$(PARALLEL) build/neon/run && \
		for isa in portable neon; do PAMX_CPU_ISA=$$isa $(NEON_RUN) build/neon/run || exit; done; \
	else echo "make: NEON not tested: apt install $(NEON_PACKAGES)" >&2; fi

# What tests/metal compiles shaders and their host with, on a Linux machine that has no Metal. It is
# skipped, with this reason, where these packages are missing.
METAL_PACKAGES := clang-19 lld-19 libclang-rt-19-dev libgnustep-base-dev gobjc++-12 \
	libblocksruntime-dev
metal_packages = dpkg -s $(METAL_PACKAGES) >/dev/null 2>&1

metal-tools:
	@if [ "$$(uname -sm)" = "Linux x86_64" ] && ! { $(metal_packages); }; then \
		$(call apt_install,$(METAL_PACKAGES)); \
		$(metal_packages) || echo "make: shaders not tested: apt install $(METAL_PACKAGES)" >&2; fi

define native_test
build/$(1)/run: $(NATIVE_TEST:%.cpp=build/$(1)/%.o)
	$$(CXX.$(1)) $$(NATIVE_TEST_FLAGS) $$(FLAGS.$(1)) $$^ -o $$@

build/$(1)/%.o: %.cpp $(NATIVE_HEADERS) $(wildcard shaders/*.h)
	@mkdir -p $$(@D)
	$$(CXX.$(1)) $$(NATIVE_TEST_FLAGS) $$(FLAGS.$(1)) $$(call isa_flags,$(1),$$<) -c $$< -o $$@
endef
$(foreach way,asan tsan neon,$(eval $(call native_test,$(way))))

clean:
	rm -rf .venv build dist *.egg-info pamx/native/*.so pamx/native/*.metallib
