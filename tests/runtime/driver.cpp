// Runs one kernel on tensors from standard input and writes the tensors back to standard output.
//
// Input, all integers of 64 bits: 0 for forward or 1 for backward, the number of arguments, these,
// the number of tensors, and for each the argument that holds its address, its bytes, its content.

#include <cstdio>
#include <cstdlib>
#include <vector>

extern "C" long fwgen_forward(const long *);
extern "C" long fwgen_backward(const long *);

static void take(void *to, size_t bytes) {
    if (bytes && fread(to, 1, bytes, stdin) != bytes) exit(100);
}
static long number() {
    long n;
    take(&n, sizeof n);
    return n;
}

int main() {
    const long backward = number();
    std::vector<long> arguments(number());
    take(arguments.data(), sizeof(long) * arguments.size());
    std::vector<std::vector<char>> tensors(number());
    for (auto &tensor : tensors) {
        const long slot = number();
        tensor.resize(number() + 1);
        take(tensor.data(), tensor.size() - 1);
        arguments[slot] = (long)tensor.data();
    }
    const long status = (backward ? fwgen_backward : fwgen_forward)(arguments.data());
    for (const auto &tensor : tensors) fwrite(tensor.data(), 1, tensor.size() - 1, stdout);
    return status;
}
