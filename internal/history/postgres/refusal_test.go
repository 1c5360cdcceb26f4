package postgres_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/cases"
)

func durable(number int64) history.Record {
	r := checkpoint(number)
	r.Checkpoint.Durable = true
	return r
}

func refused(details map[string]string) history.Record {
	return history.Record{Event: &history.DaemonEvent{Reason: "CheckpointRefused", Message: "the gitstore will not take it", Details: details}}
}

var _ = Describe("Checkpoints that the gitstore refuses", func() {
	Describe("a refusal is kept with its checkpoint", func() {
		large := map[string]string{"checkpoint": "1", "message": "too large"}
		for name, tt := range cases.Sorted(map[string]struct {
			batches [][]history.Record
			want    string
		}{
			"never":                    {[][]history.Record{{checkpoint(1)}}, ""},
			"later":                    {[][]history.Record{{checkpoint(1)}, {refused(large)}}, "too large"},
			"at once":                  {[][]history.Record{{checkpoint(1), refused(large)}}, "too large"},
			"sent again":               {[][]history.Record{{checkpoint(1), refused(large)}, {checkpoint(1)}}, "too large"},
			"for another reason":       {[][]history.Record{{checkpoint(1), refused(large)}, {refused(map[string]string{"checkpoint": "1", "message": "odd"})}}, "odd"},
			"without details":          {[][]history.Record{{checkpoint(1), refused(map[string]string{"checkpoint": "1"})}}, "the gitstore will not take it"},
			"without a number":         {[][]history.Record{{checkpoint(1), refused(map[string]string{"message": "too large"})}}, ""},
			"another one":              {[][]history.Record{{checkpoint(1), refused(map[string]string{"checkpoint": "2", "message": "too large"})}}, ""},
			"taken in the end":         {[][]history.Record{{checkpoint(1), refused(large)}, {durable(1)}}, ""},
			"taken in the same batch":  {[][]history.Record{{checkpoint(1), refused(large), durable(1)}}, ""},
			"has it already":           {[][]history.Record{{durable(1)}, {refused(large)}}, ""},
			"with any bytes, any size": {[][]history.Record{{checkpoint(1), refused(map[string]string{"checkpoint": "1", "message": "\x00" + strings.Repeat("x", 5000)})}}, "\u2400" + strings.Repeat("x", 1021) + "…"},
		}) {
			It(name, func(ctx SpecContext) {
				t := GinkgoTB()
				w := begin(t, open(t), taskNamed(name), 1)
				for _, records := range tt.batches {
					w.append(records...)
				}
				Expect(w.store.Checkpoint(ctx, w.task.Key(), 1)).To(HaveField("Refused", tt.want))
			})
		}
	})

	// Whoever waits for a checkpoint to become durable is notified when it is, and when
	// it never will be.
	It("listeners are notified when checkpoints become durable or refused", func(ctx SpecContext) {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 3)
		w.append(checkpoint(1), checkpoint(2))
		listening, cancel := context.WithCancel(ctx)
		notified, done := make(chan history.Notification, 10), make(chan error)
		go func() { done <- w.store.Listen(listening, func(n history.Notification) { notified <- n }) }()
		expect := func(want history.Notification) {
			GinkgoHelper()
			var got history.Notification
			Eventually(notified, 20*time.Second).Should(Receive(&got))
			Expect(got).To(Equal(want))
		}
		expect(history.Notification{}) // about all tasks, since earlier ones may have been missed
		w.append(durable(1))
		expect(history.Notification{Task: w.task, Attempt: 3})
		w.append(refused(map[string]string{"checkpoint": "2", "message": "too large"}))
		expect(history.Notification{Task: w.task, Attempt: 3})

		list, err := w.store.CheckpointsAfter(ctx, w.task.UID, 0, 10)
		Expect(err).NotTo(HaveOccurred())
		Expect(list).To(HaveExactElements(
			And(HaveField("Durable", true), HaveField("Refused", "")),
			And(HaveField("Durable", false), HaveField("Refused", "too large"))))
		cancel()
		<-done
	})

	// They are listed until they are durable again.
	It("lost checkpoints are listed", func(ctx SpecContext) {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		lost := func() (keys []history.CheckpointKey) {
			Expect(w.store.LostCheckpoints(ctx, func(page []history.CheckpointKey) error {
				keys = append(keys, page...)
				return nil
			})).To(Succeed())
			return keys
		}
		w.append(durable(1), durable(2))
		Expect(lost()).To(BeEmpty())
		w.append(history.Record{Event: &history.DaemonEvent{Reason: "CheckpointLost", Details: map[string]string{"checkpoint": "1"}}})
		Expect(lost()).To(Equal([]history.CheckpointKey{
			{Task: history.Key{Namespace: w.task.Namespace, UID: w.task.UID}, Number: 1},
		}))
		w.append(durable(1))
		Expect(lost()).To(BeEmpty())
	})

	// However many checkpoints a task reports as lost.
	It("lost checkpoints are read a page at a time", func(ctx SpecContext) {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		const page, all = 500, 501
		var records, losses []history.Record
		for n := range int64(all) {
			records = append(records, durable(n+1))
			losses = append(losses, history.Record{Event: &history.DaemonEvent{Reason: "CheckpointLost", Details: map[string]string{"checkpoint": strconv.FormatInt(n+1, 10)}}})
		}
		w.append(records...)
		w.append(losses...)
		var pages []int
		seen := map[int64]bool{}
		read := func(keys []history.CheckpointKey) error {
			pages = append(pages, len(keys))
			for _, key := range keys {
				seen[key.Number] = true
			}
			return nil
		}
		Expect(w.store.LostCheckpoints(ctx, read)).To(Succeed())
		Expect(pages).To(Equal([]int{page, all - page}))
		Expect(seen).To(HaveLen(all))
		pages, seen = nil, map[int64]bool{}
		begin(t, w.store, taskNamed("b"), 1).append(durable(1), losses[0])
		Expect(w.store.LostCheckpoints(ctx, func(keys []history.CheckpointKey) error {
			Expect(read(keys)).To(Succeed())
			return history.ErrSkipTask
		})).To(Succeed())
		Expect(pages).To(Equal([]int{page, 1}), "the rest of the first task is left out")
		enough := errors.New("enough")
		Expect(w.store.LostCheckpoints(ctx, func([]history.CheckpointKey) error { return enough })).To(MatchError(enough))
	})
})
