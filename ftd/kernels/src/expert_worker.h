// The thread that answers a card's mailbox: it sees the bell, runs the layer's experts on the pool, and says done.
//
//   words[0] bell   words[16] done   words[48] tokens   words[64] layer      as expert_mailbox_triton.py lays them out
//
// It spins while messages come, and looks less often when none has come for a while, so that an idle model costs
// nearly nothing. The card waits for one answer before it sends the next message.
#pragma once
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
    static constexpr int BELL = 0, DONE = 16, TOKENS = 48, LAYER = 64;
    static constexpr int32_t FAILED = -1;

    // x: the mailbox's rows, f32 or bf16; rows: f32 [max_tokens, width] that experts read where x is bf16, else null.
    ExpertWorker(ThreadPool* pool, int32_t* words, const void* x, float* rows, int64_t width, int32_t max_tokens)
        : pool_(pool), words_(words), x_(x), rows_(rows), width_(width), max_tokens_(max_tokens) {}

    ~ExpertWorker() { stop(); }

    void add(const Op* ops) { layers_.push_back(ops); }

    void start() {
        // Taken here: a bell that rings before the thread runs must not look like one of the past.
        thread_ = std::thread([this, last = look(BELL)] { work(last); });
    }

    void stop() {
        closing_.store(true);
        if (thread_.joinable()) thread_.join();
    }

    int64_t num_messages() const { return messages_.load(); }

private:
    int32_t look(int word) const { return __atomic_load_n(words_ + word, __ATOMIC_ACQUIRE); }

    void work(int32_t last) noexcept {
        auto active = std::chrono::steady_clock::now();
        while (!closing_.load(std::memory_order_relaxed)) {
            const int32_t bell = look(BELL);
            if (bell != last) {
                last = bell;
                __atomic_store_n(words_ + DONE, answer(look(TOKENS), look(LAYER)) ? bell : FAILED, __ATOMIC_RELEASE);
                messages_.fetch_add(1);
                active = std::chrono::steady_clock::now();
                continue;
            }
            for (int i = 0; i < 16; ++i) cpu_relax();
            if (std::chrono::steady_clock::now() - active > SPIN) std::this_thread::sleep_for(NAP);
        }
    }

    bool answer(int32_t tokens, int32_t layer) noexcept {
        if (tokens < 1 || tokens > max_tokens_ || layer < 0 || layer >= static_cast<int32_t>(layers_.size())) return false;
        if (rows_) {
            const uint16_t* from = static_cast<const uint16_t*>(x_);
            for (int64_t i = 0; i < tokens * width_; ++i) {
                const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
                std::memcpy(rows_ + i, &bits, sizeof(bits));
            }
        }
        Step step = {};
        step.num_tokens = tokens;
        pool_->run(layers_[layer], NUM_EXPERT_OPS, &step);
        return true;
    }

    static constexpr std::chrono::milliseconds SPIN{20};     // longer than a step takes between two layers
    static constexpr std::chrono::microseconds NAP{200};

    ThreadPool* const pool_;
    int32_t* const words_;
    const void* const x_;
    float* const rows_;
    const int64_t width_;
    const int32_t max_tokens_;
    std::vector<const Op*> layers_;
    std::atomic<bool> closing_{false};
    std::atomic<int64_t> messages_{0};
    std::thread thread_;
};

}  // namespace ftd
