// The worker threads: run a program of Ops with every thread, parts claimed one by one, nobody waits for a thread that
// the system has not scheduled.
//
//   thread:  wait for a new run -> for each op: claim own part, run it, claim parts nobody took, wait for the rest
//
// Each op of a run has one Ticket. A ticket's words carry the number of the run in their high half, so a thread that
// wakes up late and still holds the previous run can neither claim a part nor read an op of a program that is gone.
// Waiting is spinning for a bounded time, then yielding, then a futex. Linux only.
#pragma once
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "op.h"

namespace ftd {

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

inline void futex_wait(std::atomic<uint32_t>* word, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>* word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// A word that threads wait for: spin, yield, then sleep until somebody changes it and calls notify().
class alignas(64) Gate {
public:
    // Returns when done() is true. done must read what the notifier wrote before notify().
    template <class Done>
    void wait(Done done, int64_t spin_ns, int64_t yield_ns) {
        const int64_t start = now_ns();
        for (int64_t elapsed = 0; elapsed < spin_ns + yield_ns; elapsed = now_ns() - start) {
            for (int i = 0; i < 32; ++i) {
                if (done()) return;
                cpu_relax();
            }
            if (elapsed > spin_ns) sched_yield();
        }
        sleepers_.fetch_add(1);
        for (;;) {
            const uint32_t seen = word_.load();
            if (done()) break;
            futex_wait(&word_, seen);
        }
        sleepers_.fetch_sub(1);
    }

    void notify() {
        if (sleepers_.load() == 0) return;
        word_.fetch_add(1);
        futex_wake_all(&word_);
    }

private:
    static int64_t now_ns() {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }

    std::atomic<uint32_t> word_{0};
    std::atomic<int32_t> sleepers_{0};
};

class ThreadPool {
public:
    static constexpr int32_t MAX_THREADS = 32;  // one claim bit a part in the low half of a ticket's word

    // Starts num_threads - 1 workers for programs of num_parts parts; worker i is pinned to cores[i] when there are that
    // many cores.
    ThreadPool(int32_t num_parts, int32_t num_threads, const std::vector<int>& cores) : num_parts_(num_parts) {
        const bool pinned = static_cast<size_t>(num_threads) <= cores.size();
        spin_ns_ = pinned ? 200000 : 8000;
        for (int32_t thread = 1; thread < num_threads; ++thread)
            workers_.emplace_back([this, thread, core = pinned ? cores[thread] : -1] { work(thread, core); });
    }

    ~ThreadPool() {
        closing_.store(true);
        epoch_.fetch_add(1);
        idle_.notify();
        for (auto& worker : workers_) worker.join();
    }

    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    // Runs the program and returns when all of it is done. The caller works as thread 0; a second caller waits.
    void run(const Op* ops, int32_t num_ops, const Step* step) noexcept {
        const std::lock_guard<std::mutex> guard(caller_);
        if (workers_.empty()) {
            for (int32_t i = 0; i < num_ops; ++i)
                for (int32_t part = 0; part < num_parts_; ++part) ops[i].run(ops[i].args, step, part, num_parts_);
            return;
        }
        const uint32_t run_id = epoch_.load(std::memory_order_relaxed) + 1;
        reserve(num_ops);
        Ticket* tickets = tickets_.load(std::memory_order_relaxed);
        for (int32_t i = 0; i < num_ops; ++i) {
            tickets[i].taken.store(tag(run_id), std::memory_order_relaxed);
            tickets[i].done.store(tag(run_id), std::memory_order_relaxed);
        }
        // Release: whoever sees one of these words also sees the new tags, and so cannot claim for an earlier run.
        ops_.store(ops, std::memory_order_release);
        num_ops_.store(num_ops, std::memory_order_release);
        step_.store(step, std::memory_order_release);
        epoch_.store(run_id);
        idle_.notify();
        execute(0, run_id);
    }

private:
    struct alignas(64) Ticket {
        std::atomic<uint64_t> taken{0};  // run << 32 | bit of each claimed part
        std::atomic<uint64_t> done{0};   // run << 32 | number of finished parts
    };

    static uint64_t tag(uint32_t run_id) { return static_cast<uint64_t>(run_id) << 32; }

    // Workers of an earlier run may still look at the old tickets, so these live as long as the pool.
    void reserve(int32_t num_ops) {
        if (num_ops <= capacity_) return;
        capacity_ = num_ops + num_ops / 2 + 16;
        owned_.emplace_back(new Ticket[capacity_]);
        tickets_.store(owned_.back().get());
    }

    bool claim(Ticket& ticket, uint32_t run_id, int32_t part) noexcept {
        const uint64_t bit = 1ull << part;
        uint64_t seen = ticket.taken.load();
        while ((seen >> 32) == run_id && !(seen & bit))
            if (ticket.taken.compare_exchange_weak(seen, seen | bit)) return true;
        return false;
    }

    void execute(int32_t thread, uint32_t run_id) noexcept {
        Ticket* tickets = tickets_.load();
        const Op* ops = ops_.load();
        const int32_t num_ops = num_ops_.load();
        const Step* step = step_.load();
        const int32_t parts = num_parts_;
        for (int32_t i = 0; i < num_ops; ++i) {
            // A stale thread reads tickets that exist but are tagged with a newer run: it claims nothing and leaves.
            Ticket& ticket = tickets[i];
            for (int32_t offset = 0; offset < parts; ++offset) {
                const int32_t part = (thread + offset) % parts;
                if (!claim(ticket, run_id, part)) continue;
                ops[i].run(ops[i].args, step, part, parts);
                if (ticket.done.fetch_add(1) + 1 == tag(run_id) + parts) busy_.notify();
            }
            const uint64_t finished = tag(run_id) + parts;
            const auto over = [&] { return ticket.done.load() == finished || epoch_.load() != run_id; };
            busy_.wait(over, spin_ns_ / 4, BUSY_YIELD_NS);
            if (epoch_.load() != run_id) return;
        }
    }

    void work(int32_t thread, int core) noexcept {
        if (core >= 0) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(core, &set);
            pthread_setaffinity_np(pthread_self(), sizeof(set), &set);  // best effort: the core may be gone
        }
        uint32_t seen = 0;
        for (;;) {
            idle_.wait([&] { return epoch_.load() != seen; }, spin_ns_, 0);
            seen = epoch_.load();
            if (closing_.load()) return;
            execute(thread, seen);
        }
    }

    static constexpr int64_t BUSY_YIELD_NS = 500000;

    const int32_t num_parts_;
    std::mutex caller_;
    int64_t spin_ns_ = 0;  // before yielding: long enough to bridge the pause between two decode steps
    int32_t capacity_ = 0;
    std::vector<std::unique_ptr<Ticket[]>> owned_;
    std::atomic<Ticket*> tickets_{nullptr};
    std::atomic<const Op*> ops_{nullptr};
    std::atomic<int32_t> num_ops_{0};
    std::atomic<const Step*> step_{nullptr};
    std::atomic<bool> closing_{false};
    alignas(64) std::atomic<uint32_t> epoch_{0};
    Gate idle_;
    Gate busy_;
    std::vector<std::thread> workers_;
};

}  // namespace ftd
