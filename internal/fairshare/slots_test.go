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

// at takes a place at once, or says that there is none.
func at(p *fairshare.Slots, shares ...fairshare.Share) (release func(), err error) {
	return p.Try(shares...)
}

func share(of string, n int) fairshare.Share { return fairshare.Share{Of: of, Slots: n} }

// come has so many ask for a place who would wait for ever. It returns how many of them
// wait, and how many were told at once that there is none. Only for a test in a bubble.
func come(t *testing.T, p *fairshare.Slots, n int, shares ...fairshare.Share) (waiting, told int) {
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
			told++
		}
	}
	return waiting, told
}

// waits begins to wait for a place.
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

func TestWhoWaitsForTheirOwnShareKeepsNobodyElseWaiting(t *testing.T) {
	g := gomega.NewWithT(t)
	p := fairshare.NewSlots(2)
	first, err := at(p, share("a", 1))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	for range 100 {
		waits(t, p, share("a", 1))
	}
	_, err = at(p, share("a", 1))
	g.Expect(err).To(gomega.MatchError(fairshare.ErrBusy))
	g.Expect(p.Contended()).To(gomega.BeFalse(), "who has their share is not kept waiting by others")
	second, err := at(p, share("b", 1))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	_, err = at(p, share("c", 1))
	g.Expect(err).To(gomega.MatchError(fairshare.ErrBusy), "all places are taken")
	second()
	_, err = at(p, share("c", 1))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	first()
}

func TestOnlySoManyWaitForAShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		p := fairshare.NewSlots(9)
		first, err := at(p, share("a", 1))
		g.Expect(err).NotTo(gomega.HaveOccurred())
		ctx, giveUp := context.WithCancel(t.Context())
		go func() { _, _ = p.Take(ctx, share("a", 1)) }()
		synctest.Wait()
		waiting, told := come(t, p, 1000, share("a", 1))
		g.Expect([]int{1 + waiting, told}).To(gomega.Equal([]int{16, 1000 - waiting}))
		waiting, told = come(t, p, 1000, share("b", 3))
		g.Expect([]int{waiting, told}).To(gomega.Equal([]int{3 * 16, 1000 - 3 - waiting}), "three have a place, and for each sixteen wait")

		giveUp()
		synctest.Wait()
		waiting, _ = come(t, p, 2, share("a", 1))
		g.Expect(waiting).To(gomega.Equal(1), "who gives up makes room in line")
		first()
		synctest.Wait()
		waiting, _ = come(t, p, 2, share("a", 1))
		g.Expect(waiting).To(gomega.Equal(1), "and so does who gets a place")
		waiting, told = come(t, p, 1, share("c", 1))
		g.Expect([]int{waiting, told}).To(gomega.Equal([]int{0, 0}), "there are places for others")
	})
}

// What a task does is no matter of the others in its namespace.
func TestTheLineOfATaskLeavesRoomInThatOfItsNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		p := fairshare.NewSlots(9)
		task := func(name string) []fairshare.Share {
			return []fairshare.Share{share("task/"+name, 1), share("namespace/a", 3)}
		}
		waiting, told := come(t, p, 1000, task("one")...)
		g.Expect([]int{waiting, told}).To(gomega.Equal([]int{16, 1000 - 1 - waiting}))
		two, err := at(p, task("two")...)
		g.Expect(err).NotTo(gomega.HaveOccurred(), "it does not stand behind those of the other task")
		_, err = at(p, task("three")...)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		four := waits(t, p, task("four")...)
		synctest.Wait()
		g.Expect(four).NotTo(gomega.Receive(), "the namespace has its share")
		two()
		synctest.Wait()
		g.Expect(four).To(gomega.Receive(), "it has waited in line, where those who came first wait for their own task")
	})
}

// One place given back may be one more for somebody else and, as its owner has none
// any more, leave one of the last third to the owner.
func TestWhatIsGivenBackGoesToAllWhoMayHaveIt(t *testing.T) {
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

func TestAPlaceIsTakenWithinEachOfTheShares(t *testing.T) {
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
	g.Expect(err).To(gomega.MatchError(fairshare.ErrBusy), "the task has its share")
	other, err := at(p, task("two")...)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	_, err = at(p, task("two")...)
	g.Expect(err).To(gomega.MatchError(fairshare.ErrBusy), "the namespace has its share")
	other()
	other() // what was given back is not given back once more
	_, err = at(p, task("two")...)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	_, err = at(p, task("three")...)
	g.Expect(err).To(gomega.MatchError(fairshare.ErrBusy))
}

func TestTheLastThirdIsForThoseWhoHaveNone(t *testing.T) {
	g := gomega.NewWithT(t)
	p := fairshare.NewSlots(6)
	taken := 0
	for _, namespace := range []string{"a", "b", "c", "a", "b", "c"} {
		if _, err := at(p, share(namespace, 2)); err == nil {
			taken++
		}
	}
	g.Expect(taken).To(gomega.Equal(4), "places of three namespaces")
	for _, namespace := range []string{"d", "e"} {
		_, err := at(p, share(namespace, 2))
		g.Expect(err).NotTo(gomega.HaveOccurred(), namespace+", which has none, gets none")
	}
}

func TestWhoWaitsForOthersIsSeenToWaitAndComesFirst(t *testing.T) {
	g := gomega.NewWithT(t)
	p := fairshare.NewSlots(1)
	first, err := at(p, share("a", 1))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	b := waits(t, p, share("b", 1))
	g.Eventually(p.Contended).Should(gomega.BeTrue())
	c := waits(t, p, share("c", 1))
	first()
	release := <-b
	g.Eventually(p.Contended).Should(gomega.BeTrue(), "one is left, whose place another one has")
	release()
	(<-c)()
	g.Expect(p.Contended()).To(gomega.BeFalse())
}

func TestWhoHasAPlaceAlreadyMakesNobodyHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		p := fairshare.NewSlots(6)
		for _, namespace := range []string{"hostile", "a", "a", "b"} {
			_, err := at(p, share(namespace, 2))
			g.Expect(err).NotTo(gomega.HaveOccurred())
		}
		waits(t, p, share("hostile", 2))
		synctest.Wait()
		g.Expect(p.Contended()).To(gomega.BeFalse(), "two places are free for those who have none, and the one who waits has one")
		for _, namespace := range []string{"c", "d"} {
			_, err := at(p, share(namespace, 2))
			g.Expect(err).NotTo(gomega.HaveOccurred())
		}
		g.Expect(p.Contended()).To(gomega.BeFalse(), "none is free, and everybody who waits has one")
		waits(t, p, share("e", 2))
		synctest.Wait()
		g.Expect(p.Contended()).To(gomega.BeTrue(), "one who waits has none")
	})
}

func TestWhoGivesUpWaitingIsNotWaitedFor(t *testing.T) {
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

// Nothing that one tenant does keeps a part of another's share of the same name waiting.
func TestPartsOfTheSameNameAreEachTenantsOwn(t *testing.T) {
	g := gomega.NewWithT(t)
	p := fairshare.NewSlots(10)
	for _, namespace := range []string{"a", "b"} {
		_, err := at(p, share("task", 1), share(namespace, 2))
		g.Expect(err).NotTo(gomega.HaveOccurred(), namespace)
	}
	_, err := at(p, share("task", 1), share("a", 2))
	g.Expect(err).To(gomega.MatchError(fairshare.ErrBusy))
}

// The counts are right after whatever order of coming, waiting, giving up and going.
func TestPlacesAreNeitherLostNorGivenTwice(t *testing.T) {
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
