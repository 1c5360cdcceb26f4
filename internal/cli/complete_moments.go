package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// inOrder runs a lookup for shell completion, whose order the shell keeps.
func (p *plugin) inOrder(lookUp func(ctx context.Context, s *session) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	found, directive := p.names(lookUp)
	return found, directive | cobra.ShellCompDirectiveKeepOrder
}

// completeCheckpointOf completes a flag with the checkpoints of the task that the
// first argument names, those without an object included.
func (p *plugin) completeCheckpointOf(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return p.inOrder(func(ctx context.Context, s *session) ([]string, error) {
		return s.momentNames(ctx, args[0], prefix)
	})
}

// completeTargetOf completes a flag with base, and with what completeStartOf knows.
func (p *plugin) completeTargetOf(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	found, directive := p.completeStartOf(cmd, args, prefix)
	if len(args) > 0 && strings.HasPrefix(historyv1.WordBase, prefix) {
		found = append(found, cobra.CompletionWithDesc(historyv1.WordBase, "the files that the task started from"))
	}
	return found, directive
}

// completeStartOf completes a flag with latest, and the checkpoints of the task that the first
// argument names.
func (p *plugin) completeStartOf(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	found, directive := p.completeCheckpointOf(cmd, args, prefix)
	if len(args) > 0 && strings.HasPrefix(historyv1.WordLatest, prefix) {
		found = append(found, cobra.CompletionWithDesc(historyv1.WordLatest, "the latest checkpoint"))
	}
	return found, directive
}

// completeCommitOf completes a flag with the commits of the checkpoints of the task that the
// first argument names.
func (p *plugin) completeCommitOf(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return p.inOrder(func(ctx context.Context, s *session) (found []string, err error) {
		known, err := s.knownCheckpoints(ctx, args[0])
		for _, c := range known {
			if id := c.Status.Commit; id != "" && strings.HasPrefix(id, prefix) {
				found = append(found, cobra.CompletionWithDesc(id, fmt.Sprintf("checkpoint %d: %s", c.Status.Number, s.checkpointAbout(&c))))
			}
		}
		return found, err
	})
}

// completeDiff completes a task, and then the two moments to compare.
func (p *plugin) completeDiff(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	switch {
	case len(args) > 2 || slices.Contains(p.words, "--"):
		return nil, cobra.ShellCompDirectiveDefault // paths
	case len(args) == 0:
		return p.completeTask(cmd, args, prefix)
	}
	return p.inOrder(func(ctx context.Context, s *session) ([]string, error) {
		if other, rest, ok := strings.Cut(prefix, ":"); ok {
			return s.otherMoments(ctx, other, rest)
		}
		found := momentWords(len(args) == 1, prefix)
		checkpoints, err := s.momentNames(ctx, args[0], prefix)
		if found = append(found, checkpoints...); err != nil || prefix == "" {
			return found, err
		}
		others, err := s.otherTasks(ctx, args[0], prefix)
		return append(found, others...), err
	})
}

// momentWords lists the words for moments that start with a prefix. Only the first of two
// moments may be previous.
func momentWords(first bool, prefix string) (found []string) {
	for _, w := range []struct{ word, about string }{
		{historyv1.WordBase, "what the task started from"},
		{historyv1.WordPrevious, "what the other moment was made on"},
		{historyv1.WordLatest, "the newest checkpoint"},
		{historyv1.WordLive, "the files as they are now"},
		{historyv1.WordDrift, "what was changed while the task was not running"},
	} {
		if strings.HasPrefix(w.word, prefix) && (first || w.word != historyv1.WordPrevious) {
			found = append(found, cobra.CompletionWithDesc(w.word, w.about))
		}
	}
	return found
}

// otherMoments lists the moments of another task, after its name and a colon.
func (s *session) otherMoments(ctx context.Context, task, prefix string) ([]string, error) {
	found := momentWords(false, prefix)
	checkpoints, err := s.momentNames(ctx, task, prefix)
	found = append(found, checkpoints...)
	for i := range found {
		found[i] = task + ":" + found[i]
	}
	return found, err
}

// otherTasks lists the latest moments of other tasks whose names start with a prefix.
func (s *session) otherTasks(ctx context.Context, task, prefix string) (found []string, err error) {
	tasks, err := s.taskNames(ctx, prefix)
	for _, candidate := range tasks {
		name, about, _ := strings.Cut(candidate, "\t")
		if name != task {
			found = append(found, cobra.CompletionWithDesc(name+":"+historyv1.WordLatest, about))
		}
	}
	return found, err
}

// momentNames lists the numbers and names of a task's checkpoints that start with a prefix,
// newest first, numbers before names.
func (s *session) momentNames(ctx context.Context, task, prefix string) ([]string, error) {
	known, err := s.knownCheckpoints(ctx, task)
	var numbers, names []string
	for i := range known {
		c := &known[i]
		about := s.checkpointAbout(c)
		if number := fmt.Sprint(c.Status.Number); c.Status.Number > 0 && strings.HasPrefix(number, prefix) {
			numbers = append(numbers, cobra.CompletionWithDesc(number, about))
		}
		if namesItself(c.Name) && strings.HasPrefix(c.Name, prefix) {
			names = append(names, cobra.CompletionWithDesc(c.Name, about))
		}
	}
	return append(numbers, names...), err
}

// knownCheckpoints returns the checkpoints of a task, newest first: their objects, and, as far
// as one page of the history has them, those without one. Without a right to read the history
// there are only the former.
func (s *session) knownCheckpoints(ctx context.Context, task string) ([]v1alpha1.Checkpoint, error) {
	list, err := s.checkpoints(ctx, task)
	if err != nil {
		return nil, err
	}
	page := &historyv1.CheckpointList{}
	if err := s.historyGet(ctx, []string{"tasks", task, "checkpoints"}, url.Values{}, page); err != nil {
		page.Items = nil
	}
	known := list.Items
	if len(page.Items) > 0 { // an earlier task of the name has numbers of its own
		known = slices.DeleteFunc(known, func(c v1alpha1.Checkpoint) bool {
			return c.Status.TaskUID != "" && c.Status.TaskUID != page.Items[0].TaskUID
		})
	}
	has := map[int64]bool{}
	for _, c := range known {
		has[c.Status.Number] = true
	}
	of := &v1alpha1.Task{}
	of.Name, of.Namespace = task, s.namespace
	for i := range page.Items {
		if c := &page.Items[i]; !has[c.Number] && !c.Lost {
			known = append(known, *objectOf(of, c))
		}
	}
	slices.SortStableFunc(known, func(a, b v1alpha1.Checkpoint) int { return cmp.Compare(b.Status.Number, a.Status.Number) })
	return known, nil
}

// checkpointAbout describes a checkpoint in a few words.
func (s *session) checkpointAbout(c *v1alpha1.Checkpoint) string {
	at := &c.CreationTimestamp
	if c.Status.Time != nil {
		at = c.Status.Time
	}
	about := fmt.Sprintf("%s, %s ago", cmp.Or(string(c.Status.Trigger), "not taken yet"), s.age(at))
	if c.Name == "" {
		about += ", without an object"
	}
	if c.Spec.Message != "" {
		about += ": " + clip.Runes(oneLine(c.Spec.Message), 40)
	}
	return about
}

// completeCheckpointShow completes a checkpoint, or a task and then its checkpoint.
func (p *plugin) completeCheckpointShow(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return p.completeTaskCheckpoint(cmd, args, prefix)
	}
	return p.inOrder(func(ctx context.Context, s *session) ([]string, error) {
		list, err := s.checkpoints(ctx, "")
		if err != nil {
			return nil, err
		}
		var found []string
		for i := range list.Items {
			if c := &list.Items[i]; strings.HasPrefix(c.Name, prefix) {
				found = append(found, cobra.CompletionWithDesc(c.Name, s.checkpointAbout(c)))
			}
		}
		tasks, err := s.taskNames(ctx, prefix)
		return append(found, tasks...), err
	})
}

// completeTaskCheckpoint completes a task, and then its checkpoint.
func (p *plugin) completeTaskCheckpoint(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return p.completeTask(cmd, args, prefix)
	case 1:
		return p.completeCheckpointOf(cmd, args, prefix)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completeRestorable completes a task, and then the numbers of its checkpoints without an
// object.
func (p *plugin) completeRestorable(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return p.completeTask(cmd, args, prefix)
	}
	return p.inOrder(func(ctx context.Context, s *session) (found []string, err error) {
		known, err := s.knownCheckpoints(ctx, args[0])
		for i := range known {
			c := &known[i]
			if number := fmt.Sprint(c.Status.Number); c.Name == "" && strings.HasPrefix(number, prefix) {
				found = append(found, cobra.CompletionWithDesc(number, s.checkpointAbout(c)))
			}
		}
		return found, err
	})
}
