// The threads that answer a card's mailbox: all see the bell, share a layer's experts out, and the last one says done.
//
//   words[0] bell   words[1] tokens   words[2] layer   words[16] done      as expert_mailbox_triton.py lays them out
//
//   one token    hidden values of all its experts in a line ──▶ columns of the sum, of all its experts at once
//   more         sort, floats of x ──▶ gather ──▶ gate_up ──▶ activate ──▶ down ──▶ combine
//
// A message is tens of microseconds' work, so nobody calls the system while messages come and nobody is told anything:
// each thread reads the bell, and of one token x and ids too, which it sorts and quantises for itself. Work is a line of
// items; `line_` says how many have been handed out, in parts that get smaller towards the end of a stage, `done_` how
// many are computed. A stage begins when all items before it are; who waits for that fetches its weights meanwhile.
// A thread that the system has taken its core from holds up nobody, unless it had taken a part.
//
// When no message has come for a while the others sleep and the leader looks less often, so that an idle model costs
// nearly nothing. The card waits for one answer before it sends the next message.
#pragma once
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "expert_message.h"
#include "pool.h"

namespace ftd {

class ExpertWorker {
public:
    static constexpr int BELL = 0, TOKENS = 1, LAYER = 2, DONE = 16;
    static constexpr int32_t FAILED = -1;

    // x: the mailbox's rows, f32 or bf16; rows: f32 [max_tokens, width] that experts read where x is bf16, else null.
    // Of more than max_floats tokens the layers' out_bfloats are written, where they have them.
    // Thread i is pinned to cores[i] when there are that many.
    ExpertWorker(int32_t num_threads, const std::vector<int>& cores, int32_t* words, const void* x, float* rows,
                 int64_t width, int32_t max_tokens, int32_t max_floats)
        : num_threads_(num_threads),
          cores_(static_cast<size_t>(num_threads) <= cores.size() ? cores : std::vector<int>()),
          words_(words),
          x_(x),
          rows_(rows),
          width_(width),
          max_tokens_(max_tokens),
          max_floats_(max_floats) {}

    ~ExpertWorker() { stop(); }

    void add(const WorkerLayer* layer) { layers_.push_back(layer); }

    // Bytes that each thread has for itself, 64-aligned.
    int64_t own_bytes() const {
        int64_t most = 0;
        for (const WorkerLayer* layer : layers_) {
            ExpertFfnArgs args = layer->args;
            const int64_t bytes = place_expert_workspace(&args, nullptr, 1, 1);
            if (bytes > most) most = bytes;
        }
        return most + copies_bytes();
    }

    // memory: own_bytes() for each thread.
    void start(char* memory) {
        // Taken here: a bell that rings before a thread runs must not look like one of the past.
        const int32_t last = look(BELL);
        opened_.store(last);
        line_.store(tagged(last) | SPENT);
        int64_t blocks = 0;
        for (const WorkerLayer* layer : layers_) {
            const int64_t its = layer->args.num_chosen * ((layer->args.inner + BLOCK - 1) / BLOCK);
            if (its > blocks) blocks = its;
        }
        ready_.reset(new std::atomic<uint8_t>[blocks]());
        const int64_t bytes = own_bytes();
        for (int32_t thread = 0; thread < num_threads_; ++thread)
            threads_.emplace_back([this, thread, last, own = memory + thread * bytes] { work(thread, last, own); });
    }

    void stop() {
        closing_.store(true);
        wake();
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
    using Message = WorkerMessage;
    using Part = WorkerPart;
    static constexpr int64_t UNIT = Message::UNIT, BLOCK_UNITS = Message::BLOCK_UNITS;

    static uint64_t tagged(int32_t bell) { return static_cast<uint64_t>(static_cast<uint32_t>(bell)) << 32; }
    // How far `line` is past `bell`: the difference of two numbers that may run over.
    static int32_t past(uint64_t line, int32_t bell) {
        return static_cast<int32_t>(static_cast<uint32_t>(line >> 32) - static_cast<uint32_t>(bell));
    }

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

    // ---- waiting for messages

    void work(int32_t thread, int32_t last, char* own) noexcept {
        pin(thread);
        for (auto active = Clock::now(); await(thread, last, active); active = Clock::now()) {
            last = look(BELL);
            answer(last, own);
        }
    }

    // Returns true when the bell has another number than `last`, false when the worker closes.
    bool await(int32_t thread, int32_t last, Clock::time_point active) noexcept {
        for (int32_t looks = 1; !closing_.load(std::memory_order_relaxed); ++looks) {
            if (look(BELL) != last && !stalled_.load(std::memory_order_relaxed)) {
                if (thread == 0) wake();
                return true;
            }
            cpu_relax();
            if (looks % IMPATIENT) continue;
            if (cores_.empty()) sched_yield();
            if (thread != 0) {
                if (asleep_.load(std::memory_order_relaxed)) futex_wait(&asleep_, 1);
            } else if (Clock::now() - active > SPIN) {
                asleep_.store(1);
                std::this_thread::sleep_for(NAP);
            }
        }
        if (thread == 0) wake();
        return false;
    }

    void wake() noexcept {
        if (asleep_.exchange(0)) futex_wake_all(&asleep_);
    }

    // ---- one message

    void answer(int32_t bell, char* own) noexcept {
        const auto begin = Clock::now();
        Message message;
        message.bell = bell;
        // Until a part is taken the next message may already be on its way; then what was read here is of no use,
        // not even how many items there are: that all of this one's have been taken, `line_` says by itself.
        const bool is_possible = read(&message, own);
        int32_t opened = opened_.load();
        while (static_cast<int32_t>(static_cast<uint32_t>(bell) - static_cast<uint32_t>(opened)) > 0) {
            if (!opened_.compare_exchange_strong(opened, bell)) continue;
            begin_ = begin;
            if (!is_possible) __atomic_store_n(words_ + DONE, FAILED, __ATOMIC_RELEASE);
            done_.store(0, std::memory_order_relaxed);
            line_.store(tagged(bell) | (is_possible ? 0 : SPENT), std::memory_order_release);
            break;
        }
        if (!is_possible) return;
        spin([&] { return past(line_.load(std::memory_order_acquire), bell) >= 0; });
        Part part = take(message);
        if (part && message.step.num_tokens == 1) prepare(&message, part, own);
        // The part behind the one in work is taken with it, so that its first weights can be fetched meanwhile.
        for (Part next; part; part = next) {
            next = take(message);
            fetch_until_due(message, part);
            run(message, part, next);
            const int64_t count = part.end - part.begin;
            if (done_.fetch_add(count, std::memory_order_acq_rel) + count == message.first[message.stages]) finish(bell);
        }
    }

    void finish(int32_t bell) noexcept {
        messages_.fetch_add(1, std::memory_order_relaxed);
        busy_ns_.fetch_add(std::chrono::nanoseconds(Clock::now() - begin_).count(), std::memory_order_relaxed);
        __atomic_store_n(words_ + DONE, bell, __ATOMIC_RELEASE);
    }

    // Reads the mailbox, and sorts one token's experts. Returns false if there is no such layer.
    bool read(Message* m, char* own) const noexcept {
        const int32_t tokens = look(TOKENS);
        m->layer = look(LAYER);
        if (tokens < 1 || tokens > max_tokens_ || m->layer < 0 || m->layer >= static_cast<int32_t>(layers_.size()))
            return false;
        m->step = {};
        m->step.num_tokens = tokens;
        const WorkerLayer& layer = *layers_[m->layer];
        ExpertFfnArgs& a = m->args = layer.args;
        place_expert_workspace(&a, own + copies_bytes(), 1, 1);
        if (tokens > 1) {
            char* scratch = a.scratch;
            a = layer.args;
            a.scratch = scratch;
            a.scratch_stride = 0;
            if (tokens <= max_floats_) a.out_bfloats = nullptr;
            m->share_out_many(PARTS_OF_MORE * num_threads_, rows_ && !a.bfloats);
            return true;
        }
        a.out_bfloats = nullptr;
        a.hidden = layer.args.hidden;
        a.hidden_codes = layer.args.hidden_codes;
        auto* ids = reinterpret_cast<int32_t*>(own + x_bytes());
        for (int32_t k = 0; k < a.num_chosen; ++k) {
            ids[k] = __atomic_load_n(layer.args.ids + k, __ATOMIC_RELAXED);
            if (ids[k] >= a.num_experts) return false;
        }
        a.ids = ids;
        layer.ops[0].run(&a, &m->step, 0, 1);
        m->share_out_one();
        return true;
    }

    // One token's x as floats, and its codes, while the first weights of the part come.
    void prepare(Message* m, const Part& part, char* own) const noexcept {
        ExpertFfnArgs& a = m->args;
        if (part.stage == 0) m->fetch_hidden(part);
        if (rows_) {
            floats(reinterpret_cast<float*>(own), 0);
            a.x = reinterpret_cast<float*>(own);
        }
        layers_[m->layer]->ops[1].run(&a, &m->step, 0, 1);
    }

    // What a thread copies of a message: x as floats, and ids, which must not change while they are sorted.
    int64_t x_bytes() const { return (4 * width_ + 63) / 64 * 64; }
    int64_t copies_bytes() const {
        int64_t chosen = 0;
        for (const WorkerLayer* layer : layers_) chosen = layer->args.num_chosen > chosen ? layer->args.num_chosen : chosen;
        return x_bytes() + (4 * chosen + 63) / 64 * 64;
    }

    void floats(float* to, int64_t row) const {
        const uint16_t* from = static_cast<const uint16_t*>(x_) + row * width_;
        for (int64_t i = 0; i < width_; ++i) to[i] = bfloat_to_float(from[i]);
    }

    // Takes the next part of the message: half of a thread's share of what its stage has left.
    Part take(const Message& m) noexcept {
        uint64_t line = line_.load(std::memory_order_relaxed);
        for (;;) {
            const int64_t at = static_cast<uint32_t>(line);
            if (past(line, m.bell) != 0 || at == SPENT) return {0, 0, 0};
            int stage = 0;
            while (at >= m.first[stage + 1]) ++stage;
            const int64_t left = m.first[stage + 1] - at, half = left / (2 * num_threads_), least = m.least[stage];
            int64_t count = m.step.num_tokens > 1 || half < least ? (least < left ? least : left) : half;
            if (count > BLOCK_UNITS) count -= (at + count) % BLOCK_UNITS;  // blocks whole, while there are many
            const int64_t end = at + count, rest = end == m.first[m.stages] ? SPENT : end;
            const uint64_t next = tagged(m.bell) | static_cast<uint64_t>(rest);
            if (line_.compare_exchange_weak(line, next, std::memory_order_acq_rel)) return {stage, at, end};
        }
    }

    // Returns when all stages before the part's are done; of one token fetches what down will read.
    void fetch_until_due(const Message& m, const Part& part) noexcept {
        const auto is_due = [&] { return done_.load(std::memory_order_acquire) >= m.first[part.stage]; };
        if (is_due()) return;
        if (m.step.num_tokens == 1) m.fetch_columns(part, is_due);
        spin(is_due);
    }

    void run(const Message& m, const Part& part, const Part& next) noexcept {
        const ExpertFfnArgs& a = m.args;
        const int64_t begin = part.begin - m.first[part.stage], end = part.end - m.first[part.stage];
        if (m.step.num_tokens > 1) {
            many(m, part, begin);
        } else if (part.stage == 0) {
            hidden(a, begin, end, next && next.stage == 0 ? next.begin : NONE);
        } else {
            const int64_t ahead = next ? (next.begin - m.first[1]) * UNIT : NONE, last = end * UNIT;
            a.column_part(a, begin * UNIT, last < a.width ? last : a.width, ahead);
        }
    }

    // Item `item` of a stage of several tokens.
    void many(const Message& m, const Part& part, int64_t item) noexcept {
        if (part.stage == 0 && item > 0) return floats(rows_ + (item - 1) * width_, item - 1);
        const int64_t parts = part.stage == 0 ? 1 : m.first[part.stage + 1] - m.first[part.stage];
        layers_[m.layer]->ops[part.stage].run(&m.args, &m.step, static_cast<int32_t>(item), static_cast<int32_t>(parts));
    }

    // Units [begin, end) of the line of hidden values. Who computes a block's last unit quantises the block.
    void hidden(const ExpertFfnArgs& a, int64_t begin, int64_t end, int64_t next) noexcept {
        const int64_t each = Message::units(a.inner);
        const auto value = [&](int64_t unit) {
            const int64_t at = unit % each * UNIT;
            return unit / each * a.inner + at;
        };
        a.hidden_part(a, value(begin), value(end), next == NONE ? NONE : value(next));
        if (a.down.exact) return;
        const int64_t blocks = (each + BLOCK_UNITS - 1) / BLOCK_UNITS;
        while (begin < end) {
            const int64_t place = begin / each, unit = begin % each, b = unit / BLOCK_UNITS;
            int64_t last = (b + 1) * BLOCK_UNITS < each ? (b + 1) * BLOCK_UNITS : each;
            const int64_t of_block = last - b * BLOCK_UNITS;
            if (last - unit > end - begin) last = unit + end - begin;
            begin += last - unit;
            if (last - unit < of_block) {
                std::atomic<uint8_t>& ready = ready_[place * blocks + b];
                const auto ours = static_cast<uint8_t>(last - unit);
                if (ready.fetch_add(ours, std::memory_order_acq_rel) + ours < of_block) continue;
                ready.store(0, std::memory_order_relaxed);
            }
            const Activations codes = rows_from(a.hidden_codes, place);
            a.block(a.hidden + place * a.inner + b * BLOCK, codes, b);
            if (b + 1 == blocks)
                for (int64_t i = blocks; i < codes.blocks; ++i) a.block(nullptr, codes, i);
        }
    }

    static constexpr std::chrono::milliseconds SPIN{20};     // longer than a step takes between two layers
    static constexpr std::chrono::microseconds NAP{200};
    static constexpr int PATIENT = 1 << 16, IMPATIENT = 64;  // looks before another thread gets the core
    static constexpr int64_t NONE = -1;
    static constexpr int64_t SPENT = 0xffffffff;             // of items handed out: there are no more
    static constexpr int64_t PARTS_OF_MORE = 2;              // parts of a thread in a stage of several tokens

    const int32_t num_threads_;
    const std::vector<int> cores_;
    int32_t* const words_;
    const void* const x_;
    float* const rows_;
    const int64_t width_;
    const int32_t max_tokens_, max_floats_;
    std::vector<const WorkerLayer*> layers_;
    std::vector<std::thread> threads_;
    std::unique_ptr<std::atomic<uint8_t>[]> ready_;  // units of each block of hidden values, until all are there
    std::atomic<bool> closing_{false}, stalled_{false};
    std::atomic<uint32_t> asleep_{0};  // 1: the others may wait for it to change
    alignas(64) std::atomic<int64_t> messages_{0};
    std::atomic<int64_t> busy_ns_{0};
    Clock::time_point begin_;
    alignas(64) std::atomic<int32_t> opened_{0};  // the last message that a thread has seen first
    alignas(64) std::atomic<uint64_t> line_{SPENT};  // message << 32 | items handed out, or SPENT
    alignas(64) std::atomic<int64_t> done_{0};    // items computed
};

}  // namespace ftd
