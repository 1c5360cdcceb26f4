package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/history"
)

// BenchmarkAppend stores one tool call and its result per batch, as a daemon
// that keeps up does.
func BenchmarkAppend(b *testing.B) {
	w := begin(b, open(b), taskNamed("a"), 1)
	for i := range b.N {
		id := fmt.Sprint(i)
		w.append(call(id), result(id))
	}
}

// BenchmarkAppendMany stores a thousand messages of 1 KiB in one batch.
func BenchmarkAppendMany(b *testing.B) {
	w := begin(b, open(b), taskNamed("a"), 1)
	text := strings.Repeat("x", 1024)
	for i := range b.N {
		var records []history.Record
		for n := range 1000 {
			records = append(records, user(fmt.Sprint(i, n, text)))
		}
		w.append(records...)
	}
}

// BenchmarkConversation reads the last 1,000 messages of a conversation of
// 10,000 on five branches.
func BenchmarkConversation(b *testing.B) {
	w := begin(b, open(b), taskNamed("a"), 1)
	for branch := range 5 {
		var records []history.Record
		for n := range 2000 {
			records = append(records, user(fmt.Sprint(branch, n, strings.Repeat("x", 500))))
		}
		w.append(append(records, checkpoint(int64(branch+1)))...)
		w.move(fmt.Sprint(branch), int64(branch+1))
	}
	b.ResetTimer()
	for range b.N {
		entries, err := w.store.Conversation(b.Context(), w.task.UID, 9000, 1000)
		if err != nil || len(entries) != 1000 {
			b.Fatalf("%d entries, %v", len(entries), err)
		}
	}
}
