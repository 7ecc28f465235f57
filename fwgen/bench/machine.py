"""The machine's limit: float32 multiply-adds per second, measured by a small loop in C."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import torch

# Sixteen independent chains hide the latency of a multiply-add. Each thread counts its own
# processor time, so that other processes do not lower the result.
SOURCE = r"""
#include <stdio.h>
#include <time.h>
#include <omp.h>
typedef float wide __attribute__((vector_size(64)));
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
#define FOR8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define FOR16(X) FOR8(X) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define NEW(n) wide a##n = b + n;
#define RUN(n) a##n = a##n * m + b; __asm__ volatile("" : "+v"(a##n));
#define SUM(n) s += a##n[0];
int main(void) {
    const long turns = 8000000;
    double best = 0, waste = 0;
    for (int trial = 0; trial < 5; trial++) {
        double rate = 0;
        #pragma omp parallel reduction(+ : rate, waste)
        {
            wide m = {0}, b = {0};
            m += 0.999999f; b += 1e-6f;
            FOR16(NEW)
            double start = now();
            for (long i = 0; i < turns; i++) { FOR16(RUN) }
            rate = turns * 16.0 * 16 * 2 / (now() - start);
            double s = 0;
            FOR16(SUM)
            waste = s;
        }
        if (rate > best) best = rate;
    }
    printf("%.6e %g\n", best, waste);
}
"""


@cache
def peak_flops() -> tuple[float, str]:
    """FLOP/s of all of torch's threads and how it was measured.

    Without a C compiler a large matrix product stands in, which is lower.
    """
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if compiler:
        try:
            return _measured(compiler), "multiply-add loop"
        except (OSError, subprocess.SubprocessError, ValueError):
            pass
    a, best = torch.randn(2048, 2048), 0.0
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(a, a)
        best = max(best, 2 * 2048**3 / (time.perf_counter() - start))
    return best, "matrix product"


def _measured(compiler: str) -> float:
    flags = ["-O2", "-march=native", "-fopenmp", "-ffp-contract=fast"]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "peak.c", Path(folder) / "peak"
        source.write_text(SOURCE, encoding="utf-8")
        command = [compiler, *flags, str(source), "-o", str(program)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
        run = subprocess.run(
            [str(program)], check=True, capture_output=True, text=True, timeout=60, env=environment
        )
    return float(run.stdout.split()[0])
