// The threads that answer a card's mailbox: one sees the bell, all run the layer's experts, and it says done.
//
//   words[0] bell   words[1] tokens   words[2] layer   words[16] done      as expert_mailbox_triton.py lays them out
//
// A message is a few microseconds' work for each thread, so nothing here calls the system while messages come: the
// leader spins on the bell, the others on `stage_`, and an op ends when all have counted themselves in `arrived_`.
// When no message has come for a while the others sleep and the leader looks less often, so that an idle model costs
// nearly nothing. The card waits for one answer before it sends the next message.
#pragma once
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "expert_ffn.h"
#include "pool.h"

namespace ftd {

class ExpertWorker {
public:
    static constexpr int BELL = 0, TOKENS = 1, LAYER = 2, DONE = 16;
    static constexpr int32_t FAILED = -1;

    // x: the mailbox's rows, f32 or bf16; rows: f32 [max_tokens, width] that experts read where x is bf16, else null.
    // Thread i is pinned to cores[i] when there are that many.
    ExpertWorker(int32_t num_threads, const std::vector<int>& cores, int32_t* words, const void* x, float* rows,
                 int64_t width, int32_t max_tokens)
        : num_threads_(num_threads),
          cores_(static_cast<size_t>(num_threads) <= cores.size() ? cores : std::vector<int>()),
          words_(words),
          x_(x),
          rows_(rows),
          width_(width),
          max_tokens_(max_tokens) {}

    ~ExpertWorker() { stop(); }

    void add(const Op* ops) { layers_.push_back(ops); }

    void start() {
        for (int32_t thread = 1; thread < num_threads_; ++thread)
            threads_.emplace_back([this, thread] { follow(thread); });
        // Taken here: a bell that rings before the thread runs must not look like one of the past.
        threads_.emplace_back([this, last = look(BELL)] { lead(last); });
    }

    void stop() {
        closing_.store(true);
        for (auto& thread : threads_) thread.join();
        threads_.clear();
    }

    // Stop answering, as a worker does that the system has taken its cores from; for tests.
    void stall(bool stalled) { stalled_.store(stalled); }

    int64_t num_messages() const { return messages_.load(std::memory_order_relaxed); }
    // From seeing a bell to the answer, over all messages.
    int64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }

private:
    using Clock = std::chrono::steady_clock;

    int32_t look(int word) const { return __atomic_load_n(words_ + word, __ATOMIC_ACQUIRE); }

    void pin(int32_t thread) const {
        if (cores_.empty()) return;
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cores_[thread], &set);
        pthread_setaffinity_np(pthread_self(), sizeof(set), &set);  // best effort: the core may be gone
    }

    // Spins until done() is true; gives the core away from time to time, as there may be fewer cores than threads.
    template <class Done>
    void spin(const Done& done) const {
        const int patience = cores_.empty() ? IMPATIENT : PATIENT;
        for (int i = 0; !done(); ++i) {
            if (i < patience) {
                cpu_relax();
            } else {
                sched_yield();
            }
        }
    }

    // ---- the leader

    void lead(int32_t last) noexcept {
        pin(0);
        auto active = Clock::now();
        for (int32_t looks = 0; !closing_.load(std::memory_order_relaxed); ++looks) {
            const int32_t bell = look(BELL);
            if (bell != last && !stalled_.load(std::memory_order_relaxed)) {
                const auto begin = Clock::now();
                last = bell;
                wake();
                const bool answered = answer(look(TOKENS), look(LAYER));
                __atomic_store_n(words_ + DONE, answered ? bell : FAILED, __ATOMIC_RELEASE);
                active = Clock::now();
                messages_.fetch_add(1, std::memory_order_relaxed);
                busy_ns_.fetch_add(std::chrono::nanoseconds(active - begin).count(), std::memory_order_relaxed);
                continue;
            }
            cpu_relax();
            if (looks % IMPATIENT) continue;
            if (cores_.empty()) sched_yield();
            if (Clock::now() - active < SPIN) continue;
            asleep_.store(1);
            std::this_thread::sleep_for(NAP);
        }
        stage_.fetch_add(1);
        wake();
    }

    void wake() noexcept {
        if (asleep_.exchange(0)) futex_wake_all(&asleep_);
    }

    bool answer(int32_t tokens, int32_t layer) noexcept {
        if (tokens < 1 || tokens > max_tokens_ || layer < 0 || layer >= static_cast<int32_t>(layers_.size())) return false;
        const Op* ops = layers_[layer];
        if (rows_) {
            const uint16_t* from = static_cast<const uint16_t*>(x_);
            for (int64_t i = 0; i < tokens * width_; ++i) {
                const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
                std::memcpy(rows_ + i, &bits, sizeof(bits));
            }
        }
        step_.num_tokens = tokens;
        for (int32_t i = 0; i < NUM_EXPERT_OPS; ++i) {
            // Of one token all but the products is less work than to tell the others of it.
            const bool is_light = i == 0 || (tokens == 1 && (i == 1 || i == NUM_EXPERT_OPS - 1));
            if (is_light) {
                ops[i].run(ops[i].args, &step_, 0, 1);
            } else {
                together(ops + i);
            }
        }
        return true;
    }

    // Runs an op with all threads and returns when all have ended.
    void together(const Op* op) noexcept {
        op_ = op;
        arrived_.store(0, std::memory_order_relaxed);
        stage_.fetch_add(1, std::memory_order_release);
        op->run(op->args, &step_, 0, num_threads_);
        spin([&] { return arrived_.load(std::memory_order_acquire) == num_threads_ - 1; });
    }

    // ---- the others

    void follow(int32_t thread) noexcept {
        pin(thread);
        for (uint32_t seen = 0;;) {
            spin([&] {
                if (asleep_.load(std::memory_order_relaxed)) futex_wait(&asleep_, 1);
                return stage_.load(std::memory_order_acquire) != seen;
            });
            ++seen;
            if (closing_.load()) return;
            op_->run(op_->args, &step_, thread, num_threads_);
            arrived_.fetch_add(1, std::memory_order_acq_rel);
        }
    }

    static constexpr std::chrono::milliseconds SPIN{20};     // longer than a step takes between two layers
    static constexpr std::chrono::microseconds NAP{200};
    static constexpr int PATIENT = 1 << 20, IMPATIENT = 64;  // looks before another thread gets the core

    const int32_t num_threads_;
    const std::vector<int> cores_;
    int32_t* const words_;
    const void* const x_;
    float* const rows_;
    const int64_t width_;
    const int32_t max_tokens_;
    std::vector<const Op*> layers_;
    Step step_ = {};
    std::vector<std::thread> threads_;
    std::atomic<bool> closing_{false}, stalled_{false};
    std::atomic<uint32_t> asleep_{0};  // 1: the others may wait for it to change
    std::atomic<int64_t> messages_{0}, busy_ns_{0};
    const Op* op_ = nullptr;
    alignas(64) std::atomic<uint32_t> stage_{0};
    alignas(64) std::atomic<int32_t> arrived_{0};
};

}  // namespace ftd
