package fairshare_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/fairshare"
)

// at takes a slot without waiting.
func at(p *fairshare.Slots, shares ...fairshare.Share) (release func(), err error) {
	return p.Try(shares...)
}

func share(of string, n int) fairshare.Share { return fairshare.Share{Of: of, Slots: n} }

// enqueue makes n requests that would wait forever. It returns how many of them wait, and how
// many were refused at once. It may be called in a synctest bubble only.
func enqueue(t *testing.T, p *fairshare.Slots, n int, shares ...fairshare.Share) (waiting, refused int) {
	t.Helper()
	answers := make(chan error, n)
	for range n {
		go func() {
			_, err := p.Take(t.Context(), shares...)
			answers <- err
		}()
	}
	synctest.Wait()
	waiting = n - len(answers)
	for range n - waiting {
		if errors.Is(<-answers, fairshare.ErrBusy) {
			refused++
		}
	}
	return waiting, refused
}

// waits begins to wait for a slot.
func waits(t *testing.T, p *fairshare.Slots, shares ...fairshare.Share) (got chan func()) {
	t.Helper()
	got = make(chan func(), 1)
	go func() {
		if release, err := p.Take(t.Context(), shares...); err == nil {
			got <- release
		}
	}()
	return got
}

func TestRequestsThatWaitForTheirOwnShareDelayNobodyElse(t *testing.T) {
	g := gomega.NewWithT(t)
	p := fairshare.NewSlots(2)
	first, err := at(p, share("a", 1))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	for range 100 {
		waits(t, p, share("a", 1))
	}
	_, err = at(p, share("a", 1))
	g.Expect(err).To(gomega.MatchError(fairshare.ErrBusy))
	g.Expect(p.Contended()).To(gomega.BeFalse(), "a tenant that has its whole share does not wait for others")
	second, err := at(p, share("b", 1))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	_, err = at(p, share("c", 1))
	g.Expect(err).To(gomega.MatchError(fairshare.ErrBusy), "all slots are taken")
	second()
	_, err = at(p, share("c", 1))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	first()
}

func TestTheLineForAShareIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		p := fairshare.NewSlots(9)
		first, err := at(p, share("a", 1))
		g.Expect(err).NotTo(gomega.HaveOccurred())
		ctx, giveUp := context.WithCancel(t.Context())
		go func() { _, _ = p.Take(ctx, share("a", 1)) }()
		synctest.Wait()
		waiting, refused := enqueue(t, p, 1000, share("a", 1))
		g.Expect([]int{1 + waiting, refused}).To(gomega.Equal([]int{16, 1000 - waiting}))
		waiting, refused = enqueue(t, p, 1000, share("b", 3))
		g.Expect([]int{waiting, refused}).To(gomega.Equal([]int{3 * 16, 1000 - 3 - waiting}), "three hold a slot, and sixteen wait for each")

		giveUp()
		synctest.Wait()
		waiting, _ = enqueue(t, p, 2, share("a", 1))
		g.Expect(waiting).To(gomega.Equal(1), "a request that gives up leaves the line")
		first()
		synctest.Wait()
		waiting, _ = enqueue(t, p, 2, share("a", 1))
		g.Expect(waiting).To(gomega.Equal(1), "and so does one that gets a slot")
		waiting, refused = enqueue(t, p, 1, share("c", 1))
		g.Expect([]int{waiting, refused}).To(gomega.Equal([]int{0, 0}), "others still get slots")
	})
}

// A task's requests do not keep the other tasks of its namespace out of line.
func TestTheLineOfATaskDoesNotFillThatOfItsNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		p := fairshare.NewSlots(9)
		task := func(name string) []fairshare.Share {
			return []fairshare.Share{share("task/"+name, 1), share("namespace/a", 3)}
		}
		waiting, refused := enqueue(t, p, 1000, task("one")...)
		g.Expect([]int{waiting, refused}).To(gomega.Equal([]int{16, 1000 - 1 - waiting}))
		two, err := at(p, task("two")...)
		g.Expect(err).NotTo(gomega.HaveOccurred(), "it does not wait behind those of the other task")
		_, err = at(p, task("three")...)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		four := waits(t, p, task("four")...)
		synctest.Wait()
		g.Expect(four).NotTo(gomega.Receive(), "the namespace has its whole share")
		two()
		synctest.Wait()
		g.Expect(four).To(gomega.Receive(), "it is next, since those that came first wait for their own task's share")
	})
}

// One released slot may go to another tenant, and at the same time give its former holder,
// which now holds none, a claim to a reserved slot.
func TestAReleasedSlotServesEveryWaiterThatMayHaveOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		p := fairshare.NewSlots(3)
		first, err := at(p, share("a", 1))
		g.Expect(err).NotTo(gomega.HaveOccurred())
		_, err = at(p, share("b", 2))
		g.Expect(err).NotTo(gomega.HaveOccurred())
		b := waits(t, p, share("b", 2))
		synctest.Wait()
		a := waits(t, p, share("a", 1))
		synctest.Wait()
		first()
		synctest.Wait()
		g.Expect(b).To(gomega.Receive())
		g.Expect(a).To(gomega.Receive())
	})
}

func TestASlotIsTakenWithinEachShare(t *testing.T) {
	g := gomega.NewWithT(t)
	p := fairshare.NewSlots(30)
	task := func(name string) []fairshare.Share {
		return []fairshare.Share{share("task/"+name, 2), share("namespace/a", 3)}
	}
	for range 2 {
		_, err := at(p, task("one")...)
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
	_, err := at(p, task("one")...)
	g.Expect(err).To(gomega.MatchError(fairshare.ErrBusy), "the task has its whole share")
	other, err := at(p, task("two")...)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	_, err = at(p, task("two")...)
	g.Expect(err).To(gomega.MatchError(fairshare.ErrBusy), "the namespace has its whole share")
	other()
	other() // releasing twice has no effect
	_, err = at(p, task("two")...)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	_, err = at(p, task("three")...)
	g.Expect(err).To(gomega.MatchError(fairshare.ErrBusy))
}

func TestTheLastThirdIsReservedForTenantsThatHoldNone(t *testing.T) {
	g := gomega.NewWithT(t)
	p := fairshare.NewSlots(6)
	taken := 0
	for _, namespace := range []string{"a", "b", "c", "a", "b", "c"} {
		if _, err := at(p, share(namespace, 2)); err == nil {
			taken++
		}
	}
	g.Expect(taken).To(gomega.Equal(4), "slots taken by three namespaces")
	for _, namespace := range []string{"d", "e"} {
		_, err := at(p, share(namespace, 2))
		g.Expect(err).NotTo(gomega.HaveOccurred(), namespace+" holds no slot and gets a reserved one")
	}
}

func TestTheFirstToWaitForOthersIsContendedAndServedFirst(t *testing.T) {
	g := gomega.NewWithT(t)
	p := fairshare.NewSlots(1)
	first, err := at(p, share("a", 1))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	b := waits(t, p, share("b", 1))
	g.Eventually(p.Contended).Should(gomega.BeTrue())
	c := waits(t, p, share("c", 1))
	first()
	release := <-b
	g.Eventually(p.Contended).Should(gomega.BeTrue(), "c still waits for the slot that b holds")
	release()
	(<-c)()
	g.Expect(p.Contended()).To(gomega.BeFalse())
}

func TestATenantThatHoldsASlotIsNotContended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		p := fairshare.NewSlots(6)
		for _, namespace := range []string{"hostile", "a", "a", "b"} {
			_, err := at(p, share(namespace, 2))
			g.Expect(err).NotTo(gomega.HaveOccurred())
		}
		waits(t, p, share("hostile", 2))
		synctest.Wait()
		g.Expect(p.Contended()).To(gomega.BeFalse(), "two slots are free for tenants that hold none, and the waiting tenant holds one")
		for _, namespace := range []string{"c", "d"} {
			_, err := at(p, share(namespace, 2))
			g.Expect(err).NotTo(gomega.HaveOccurred())
		}
		g.Expect(p.Contended()).To(gomega.BeFalse(), "no slot is free, and every waiting tenant holds one")
		waits(t, p, share("e", 2))
		synctest.Wait()
		g.Expect(p.Contended()).To(gomega.BeTrue(), "a waiting tenant holds none")
	})
}

func TestARequestThatGivesUpGetsNoSlot(t *testing.T) {
	g := gomega.NewWithT(t)
	p := fairshare.NewSlots(1)
	first, err := at(p, share("a", 1))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := p.Take(ctx, share("b", 1))
		ended <- err
	}()
	g.Eventually(p.Contended).Should(gomega.BeTrue())
	cancel()
	g.Expect(<-ended).To(gomega.MatchError(fairshare.ErrBusy))
	g.Expect(p.Contended()).To(gomega.BeFalse())
	first()
	_, err = at(p, share("b", 1))
	g.Expect(err).NotTo(gomega.HaveOccurred())
}

// Shares of two tenants are separate even if they have the same name.
func TestSharesOfTheSameNameAreSeparatePerTenant(t *testing.T) {
	g := gomega.NewWithT(t)
	p := fairshare.NewSlots(10)
	for _, namespace := range []string{"a", "b"} {
		_, err := at(p, share("task", 1), share(namespace, 2))
		g.Expect(err).NotTo(gomega.HaveOccurred(), namespace)
	}
	_, err := at(p, share("task", 1), share("a", 2))
	g.Expect(err).To(gomega.MatchError(fairshare.ErrBusy))
}

// The counts are right after any order of taking, waiting, giving up and releasing.
func TestSlotsAreNeitherLostNorGivenTwice(t *testing.T) {
	g := gomega.NewWithT(t)
	p := fairshare.NewSlots(4)
	var mu sync.Mutex
	most, now := 0, 0
	count := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		now += n
		most = max(most, now)
	}
	var all sync.WaitGroup
	for i := range 300 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%3 == 0 {
				go cancel()
			}
			release, err := p.Take(ctx, share(fmt.Sprint("task/", i%7), 1), share(fmt.Sprint("namespace/", i%2), 3))
			if err != nil {
				return
			}
			count(1)
			count(-1)
			release()
		})
	}
	all.Wait()
	g.Expect(most).To(gomega.BeNumerically("<=", 4))
	g.Expect(p.Contended()).To(gomega.BeFalse())
	for _, of := range []string{"a", "b", "c", "d"} {
		_, err := at(p, share(of, 1))
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
	_, err := at(p, share("e", 1))
	g.Expect(err).To(gomega.HaveOccurred())
}
