// A team of threads that goes through a pass together: shares the work of a phase, and meets at its end.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <sched.h>

namespace trifolium {

// Phases are numbered by each member alike; a phase's work is dealt out in pieces to whoever is free.
class Team {
  public:
    Team(int size, int64_t phases) : size_(size), next_(new std::atomic<int64_t>[phases]()) {}
    ~Team() { delete[] next_; }
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Calls work(i) for i = 0 .. count - 1, each once in the whole team; when all of it is done, the last member to
    // notice does `last`, and then all go on. Pieces are dealt out large ones first, so that members end together even
    // if one is slowed down.
    template <class Work, class Last>
    void share(int64_t& phase, int64_t count, Work work, Last last) {
        std::atomic<int64_t>& next = next_[phase++];
        for (int64_t from = next.load(std::memory_order_relaxed); from < count;) {
            const int64_t piece = std::max<int64_t>(1, (count - from) / (2 * size_));
            const int64_t to = size_ == 1 ? count : from + piece;
            if (!next.compare_exchange_weak(from, to, std::memory_order_relaxed)) continue;
            for (int64_t i = from; i < to; ++i) work(i);
            from = next.load(std::memory_order_relaxed);
        }
        meet(last);
    }

    int size() const { return size_; }

  private:
    // Leaves a core's units to its other thread for a moment.
    static void rest() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    // Waits for all members; the last to arrive does `last` before anyone goes on.
    template <class Last>
    void meet(Last last) {
        if (size_ == 1) return last();
        const int64_t round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
            last();
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins)
            if (spins < 2000)
                rest();
            else
                sched_yield();  // someone else needs this core
    }

    const int size_;
    std::atomic<int64_t>* next_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int64_t> round_{0};
};

}  // namespace trifolium
