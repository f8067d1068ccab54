// Memory of one call, whose size no list says: what takes tables of it in its constructor is made twice. The first time the
// memory counts, and the tables are at 0; the second time they hold zeros.
#pragma once
#include <cstdint>
#include <cstdlib>

namespace {

class Memory {
    char* const at;
    size_t taken = 0;

public:
    explicit Memory(void* whole) : at(reinterpret_cast<char*>((uintptr_t(whole) + 63) & ~uintptr_t(63))) {}
    bool counts() const { return !at; }
    size_t size() const { return taken + 64; }
    template <class T = double> T* take(int64_t n) {
        T* table = at ? reinterpret_cast<T*>(at + taken) : nullptr;
        taken += (n * sizeof(T) + 63) & ~size_t(63);
        return table;
    }
};

// Calls `work` with a `Made(memory, given...)`; false if the system has no memory.
template <class Made, class Work, class... Given> bool in_memory(Work&& work, const Given&... given) {
    Memory counted(nullptr);
    [[maybe_unused]] const Made unused(counted, given...);
    void* whole = std::calloc(counted.size(), 1);
    if (!whole) return false;
    Memory memory(whole);
    Made made(memory, given...);
    work(made);
    std::free(whole);
    return true;
}

}  // namespace
