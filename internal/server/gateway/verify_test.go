package gateway_test

import (
	"context"
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/server/gateway"
	"github.com/clew-dev/clew/internal/server/verification"
)

// verifier stands in for what verifies checkpoints on demand.
type verifier struct {
	store *postgres.Store
	// damage is what it finds; err is what it returns.
	damage string
	err    error
	asked  []history.Task
}

func (v *verifier) Verify(ctx context.Context, task history.Task, number int64, _ time.Time) error {
	v.asked = append(v.asked, task)
	if v.err != nil {
		return v.err
	}
	_, err := v.store.RecordVerdicts(ctx, task.Key(), []history.Verdict{{Number: number, Damage: v.damage}}, nil)
	return err
}

// fork stands in for a cluster in which the task b was started from the task a.
type fork struct{ gone }

func (fork) CheckTask(context.Context, podidentity.Identity) error { return nil }

func (fork) Source(_ context.Context, id podidentity.Identity) (string, error) {
	if id.TaskName == "b" {
		return "uid-of-a", nil
	}
	return "", nil
}

var _ = Describe("A daemon that met damage in the gitstore", func() {
	var f *fixture
	var found *verifier
	BeforeEach(func() {
		found = &verifier{}
		f = serve(func(o *gateway.Options) {
			found.store = o.Store.(*postgres.Store)
			o.Verifier, o.Tasks = found, fork{}
		})
		task := history.Task{Namespace: "team", Name: "a", UID: "uid-of-a"}
		Expect(found.store.Begin(f.ctx, task, 1, nil, history.BeginOptions{})).Error().NotTo(HaveOccurred())
		var records []history.Record
		for n := range int64(3) {
			records = append(records, history.Record{Sequence: n + 1, Time: time.Now(), Attempt: 1,
				Checkpoint: &history.Checkpoint{Number: n + 1, Trigger: "Interval", Time: time.Now(), Commit: "c", Durable: n < 2}})
		}
		Expect(found.store.Append(f.ctx, task, 1, records)).Error().NotTo(HaveOccurred())
	})
	BeforeEach(func() {
		task := history.Task{Namespace: "team", Name: "b", UID: "uid-of-b"}
		Expect(found.store.Begin(f.ctx, task, 1, nil, history.BeginOptions{})).Error().NotTo(HaveOccurred())
		Expect(found.store.Append(f.ctx, task, 1, []history.Record{{Sequence: 1, Time: time.Now(), Attempt: 1,
			Checkpoint: &history.Checkpoint{Number: 1, Trigger: "Interval", Time: time.Now(), Commit: "c", Durable: true}}})).Error().NotTo(HaveOccurred())
	})
	ask := func(token, uid string, number int64) (*daemonv1.VerifyCheckpointResponse, error) {
		r, err := f.client(token).VerifyCheckpoint(f.ctx, connect.NewRequest(&daemonv1.VerifyCheckpointRequest{TaskUid: uid, Checkpoint: number}))
		if err != nil {
			return nil, err
		}
		return r.Msg, nil
	}

	It("has the checkpoint verified, and learns whether it is damaged and which is not", func() {
		found.damage = "a.txt is missing"
		r, err := ask("a1", "", 2)
		Expect(err).NotTo(HaveOccurred())
		Expect([]any{r.GetVerified(), r.GetDamaged(), r.GetIntactBefore()}).To(Equal([]any{true, true, int64(1)}))

		By("many that ask at once")
		Expect(ask("a1", "", 2)).Error().NotTo(HaveOccurred())
		Expect(found.asked).To(HaveExactElements(history.Task{Namespace: "team", Name: "a", UID: "uid-of-a"}))
	})

	It("may ask about the checkpoint that it starts from", func() {
		r, err := ask("b1", "uid-of-a", 1)
		Expect(err).NotTo(HaveOccurred())
		Expect([]bool{r.GetVerified(), r.GetDamaged()}).To(Equal([]bool{true, false}))
	})

	It("asks again while the checkpoint is still being verified", func() {
		found.err = verification.ErrInProgress
		r, err := ask("a1", "", 1)
		Expect(err).NotTo(HaveOccurred())
		Expect(r.GetVerified()).To(BeFalse())
	})

	DescribeTable("is refused", func(token, uid string, number int64, code connect.Code) {
		found.err = errors.New("the gitstore is down")
		_, err := ask(token, uid, number)
		Expect(connect.CodeOf(err)).To(Equal(code))
		if code == connect.CodeNotFound {
			Expect(found.asked).To(BeEmpty(), "nothing is verified")
		}
	},
		Entry("about what is unknown", "a1", "", int64(9), connect.CodeNotFound),
		Entry("about what only the volume has", "a1", "", int64(3), connect.CodeNotFound),
		Entry("about a task that it was not started from", "a1", "uid-of-b", int64(1), connect.CodeNotFound),
		Entry("about a task of another namespace", "spoofed", "", int64(1), connect.CodeNotFound),
		Entry("while nothing can be verified", "a1", "", int64(1), connect.CodeUnavailable),
	)
})
