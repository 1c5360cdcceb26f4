package checkpoint_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// narrow is a volume on which there may be no space for the spool, while the journal, which
// replaces its old file, can still be written.
type narrow struct {
	*checkpoint.Taker
	dir string
}

func onNarrowVolume(t *testing.T) narrow {
	t.Helper()
	taker := waiting(t, &store{}, 0)
	v := narrow{Taker: taker, dir: filepath.Join(t.TempDir(), "spool")}
	var err error
	if v.Spool, err = spool.Open(v.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Spool.Close() })
	return v
}

// fill makes every write to the spool fail, until there is space again.
func (v narrow) fill(g *gomega.WithT) (makeRoom func()) {
	lock := filepath.Join(v.dir, "lock") // without it the spool writes nothing
	g.Expect(os.Rename(lock, lock+".away")).To(gomega.Succeed())
	return func() { g.Expect(os.Rename(lock+".away", lock)).To(gomega.Succeed()) }
}

// told lists the records of checkpoints, in order.
func (v narrow) told(g *gomega.WithT) (records []*daemonv1.CheckpointRecord) {
	all, err := v.Spool.Read(0, 1000, 1<<20)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	for _, r := range all {
		if c := r.GetCheckpoint(); c != nil {
			records = append(records, c)
		}
	}
	return records
}

func TestCheckpointWhoseRecordFoundNoRoomIsRecordedBeforeTheNextOne(t *testing.T) {
	g, v := gomega.NewWithT(t), onNarrowVolume(t)
	makeRoom := v.fill(g)
	_, err := v.Take(t.Context(), checkpoint.Request{Trigger: "Manual", Name: "mine", UID: "object"})
	g.Expect(err).To(gomega.HaveOccurred())
	_, err = v.Take(t.Context(), checkpoint.Request{Trigger: "Interval"})
	g.Expect(err).To(gomega.HaveOccurred())
	g.Expect(v.Journal.State().LastNumber).To(gomega.BeEquivalentTo(1), "another record has no room in the journal either")
	makeRoom()
	_, err = v.Take(t.Context(), checkpoint.Request{Trigger: "Interval"})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	told := v.told(g)
	g.Expect(told).To(gomega.HaveLen(2))
	g.Expect(told[0].GetRequestedByUid()).To(gomega.Equal("object"))
	g.Expect(told[1].GetTrigger()).To(gomega.Equal("Interval"))
}

func TestCheckpointIsRecordedBeforeItIsRecordedAsDurable(t *testing.T) {
	g, v := gomega.NewWithT(t), onNarrowVolume(t)
	makeRoom := v.fill(g)
	_, err := v.Take(t.Context(), checkpoint.Request{Trigger: "Manual", Name: "mine", UID: "object"})
	g.Expect(err).To(gomega.HaveOccurred())
	repo, _ := v.Repo.(*store)
	g.Expect(v.Push(t.Context())).NotTo(gomega.Succeed())
	g.Expect(repo.pushes).To(gomega.HaveLen(1), "the gitstore gets it at once")
	makeRoom()
	g.Expect(v.Push(t.Context())).To(gomega.Succeed())
	told := v.told(g)
	g.Expect(told).To(gomega.HaveLen(2))
	g.Expect(told[0].GetRequestedByUid()).To(gomega.Equal("object"))
	g.Expect(told[0].GetDurable()).To(gomega.BeFalse())
	g.Expect(told[1].GetDurable()).To(gomega.BeTrue())
	g.Expect(v.Journal.State()).To(gomega.HaveField("Unspooled", gomega.BeEmpty()))
}

// A push may end while a checkpoint is taken: both look for a record to spool.
func TestRecordIsWrittenOnceByTheFirstCaller(t *testing.T) {
	g, v := gomega.NewWithT(t), onNarrowVolume(t)
	for n := range int64(20) {
		g.Expect(v.Journal.Update(func(s *journal.State) error {
			return s.SetUnspooled(&daemonv1.CheckpointRecord{Number: n + 1, Attempt: 1})
		})).To(gomega.Succeed())
		done := make(chan error, 2)
		for range cap(done) {
			go func() { done <- v.Recover() }()
		}
		for range cap(done) {
			g.Expect(<-done).To(gomega.Succeed())
		}
	}
	g.Expect(v.told(g)).To(gomega.HaveLen(20))
}
