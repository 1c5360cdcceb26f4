package family

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/toolcall"
)

// waiting asks to wait, and returns the answer once there is one.
func (w world) waiting(t *testing.T, in toolcall.WaitInput) <-chan toolcall.Answer {
	t.Helper()
	ctx, answered := soon(t), make(chan toolcall.Answer, 1)
	go func() { answered <- w.ask(ctx, v1alpha1.ToolTaskWait, in) }()
	return answered
}

// goesOn reports whether an answer tells programs that the wait is not over.
func goesOn(t *testing.T, a toolcall.Answer) bool {
	t.Helper()
	var data struct{ Waiting bool }
	if err := json.Unmarshal(a.Data, &data); err != nil {
		t.Fatal(err)
	}
	return data.Waiting
}

func TestAWaitEndsWithTheTasks(t *testing.T) {
	for name, test := range map[string]struct {
		in toolcall.WaitInput
		// then change while it waits. It ends with the last of them.
		then []*v1alpha1.Task
		want []string
	}{
		"all that work": {toolcall.WaitInput{}, []*v1alpha1.Task{child("lead-a", fails), child("lead-b", completes)},
			[]string{"All 2 have stopped:\na: Failed (AgentFailed): the agent exited with 1\nb: Completed\nOf all your tasks: 1 stopped, 1 failed, 1 completed."}},
		"one by name": {toolcall.WaitInput{Tasks: []string{"b", "lead-b"}}, []*v1alpha1.Task{child("lead-b", rests)},
			[]string{"It has stopped:\nb: Stopped (Suspended): the task is suspended", "1 running"}},
		"any": {toolcall.WaitInput{Any: true}, []*v1alpha1.Task{child("lead-b", completes)},
			[]string{"1 task has stopped, and 1 not yet:\nb: Completed\nStill at work, or waiting:\na: Running"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, child("lead-a", works), child("lead-b"), child("lead-c", rests))
				answered := w.waiting(t, test.in)
				for _, task := range test.then {
					synctest.Wait()
					select {
					case early := <-answered:
						t.Fatalf("it did not wait: %s", early.Text)
					default:
					}
					w.Set(task)
				}
				synctest.Wait()
				answer := <-answered
				w.tells(answer, test.want...)
				w.g.Expect(goesOn(t, answer)).To(gomega.BeFalse())
			})
		})
	}
}

func TestAWaitForWhatHasStoppedEndsAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		tasks []*v1alpha1.Task
		in    toolcall.WaitInput
		want  string
	}{
		"one that completed": {[]*v1alpha1.Task{child("lead-a", completes)}, toolcall.WaitInput{Tasks: []string{"a"}}, "It has stopped:\na: Completed"},
		"any of some, one of which has stopped": {[]*v1alpha1.Task{child("lead-a", completes), child("lead-b", works)}, toolcall.WaitInput{Tasks: []string{"a", "b"}, Any: true},
			"1 task has stopped, and 1 not yet:"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, test.tasks...)
			w.tells(w.ask(soon(t), v1alpha1.ToolTaskWait, test.in), test.want)
		})
	}
	w := newWorld(t)
	w.refuses(w.ask(soon(t), v1alpha1.ToolTaskWait, toolcall.WaitInput{Tasks: make([]string, toolcall.MaxNames+1)}), "may name 100")
}

func TestAWaitForNothingEndsSoon(t *testing.T) {
	for name, test := range map[string]struct {
		tasks []*v1alpha1.Task
		want  string
	}{
		"no tasks":        {nil, "You have no tasks to wait for. task_create makes one."},
		"none that works": {[]*v1alpha1.Task{child("lead-a", rests), child("lead-b", fails)}, "None of your tasks works or waits: of 2, 1 stopped, 1 failed."},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, began := newWorld(t, test.tasks...), time.Now()
				w.tells(<-w.waiting(t, toolcall.WaitInput{}), test.want)
				w.refuses(<-w.waiting(t, toolcall.WaitInput{Tasks: []string{"c"}}), `You have no task "c"`)
				w.g.Expect(time.Since(began)).To(gomega.Equal(2 * settling))
			})
		})
	}
}

// A program that makes a task and waits for it calls sooner than the server hears of the task.
func TestAWaitIsAlsoForWhatWasJustMade(t *testing.T) {
	for name, in := range map[string]toolcall.WaitInput{"all": {}, "by name": {Tasks: []string{"a"}}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				answered := w.waiting(t, in)
				synctest.Wait()
				w.Set(child("lead-a", works))
				time.Sleep(lookEvery)
				synctest.Wait()
				w.Set(child("lead-a", completes))
				w.tells(<-answered, "It has stopped:\na: Completed")
			})
		})
	}
}

func TestAWaitThatIsNotOverSaysForWhomAndToCallAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, child("lead-a", works), child("lead-b", works))
		began := time.Now()
		first := w.waiting(t, toolcall.WaitInput{})
		synctest.Wait()
		w.Set(child("lead-a", completes))
		answer := <-first
		w.tells(answer, "1 task has not stopped yet:\nb: Running: the agent runs\nStopped:\na: Completed", "Call task_wait again to go on waiting, or")
		w.g.Expect(time.Since(began)).To(gomega.Equal(25 * time.Second))
		w.g.Expect(goesOn(t, answer)).To(gomega.BeTrue())

		// One of them may stop before the next call.
		w.Set(child("lead-a", works))
		w.tells(<-w.waiting(t, toolcall.WaitInput{Any: true}), "2 tasks have not stopped yet:", `Call task_wait again to go on waiting, with tasks ["a","b"] and any`)
	})
}

// Anybody who may patch the supervisor can apply any number of Tasks that name it, and change them as often.
func TestAWaitLooksSeldomHoweverManyNameTheParentAndChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		w := newWorld(t, child("lead-a", works))
		w.Known(func() bool { looks++; return true })
		stranger := func(n int) *v1alpha1.Task {
			return child(fmt.Sprintf("stranger-%05d", n), func(t *v1alpha1.Task) { t.Status.Parent = nil })
		}
		for n := range 10_000 {
			w.Set(stranger(n))
		}
		answered := w.waiting(t, toolcall.WaitInput{Tasks: []string{"a"}})
		for n := range 200 {
			time.Sleep(10 * time.Millisecond)
			w.Set(stranger(n))
		}
		synctest.Wait()
		w.g.Expect(looks).To(gomega.BeNumerically("<=", 2+int(2*time.Second/lookEvery)))
		w.Set(child("lead-a", completes))
		w.tells(<-answered, "It has stopped:\na: Completed\nOf all your tasks: 1000 waiting, 1 completed.")
	})
}

// A task whose state changes is found at its new place, and nowhere else.
func TestATaskThatBecomesAChildIsKnownOnce(t *testing.T) {
	w := newWorld(t)
	for _, parent := range []*v1alpha1.ParentStatus{nil, {Name: "lead", UID: "uid-of-lead"}, nil, {Name: "lead", UID: "former"}} {
		task := child("lead-a", works, func(t *v1alpha1.Task) { t.Status.Parent = parent })
		w.Set(task)
		w.Set(task)
		of, _, err := w.of(lead())
		w.g.Expect(err).NotTo(gomega.HaveOccurred())
		if parent != nil && parent.UID == "former" {
			w.g.Expect(of.all).To(gomega.BeEmpty())
		} else {
			w.g.Expect(of.all).To(gomega.HaveExactElements(task))
		}
	}
	w.Remove(child("lead-a"))
	w.g.Expect(w.byParent).To(gomega.BeEmpty())
}

func TestAWaitEndsWithATaskThatIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		task := child("lead-a", works)
		w := newWorld(t, task)
		answered := w.waiting(t, toolcall.WaitInput{Tasks: []string{"a"}})
		synctest.Wait()
		w.Remove(task)
		synctest.Wait()
		w.tells(<-answered, "It has stopped:\na: Deleted")
	})
}
