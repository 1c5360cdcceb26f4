package cli

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// redrawEvery is the least time between two drawings of a tree that is watched.
const redrawEvery = time.Second

// follow draws the tree whenever a Task or a Fork of the namespace has changed, until all tasks of it have
// ended, or ctx ends.
func (o *tree) follow(ctx context.Context, s *session, name string) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	changed := make(chan struct{}, 1)
	tasks, err := s.watchAll(watching, "task", &v1alpha1.TaskList{}, &v1alpha1.Task{}, changed)
	if err != nil {
		return err
	}
	forks, err := s.watchAll(watching, "fork", &v1alpha1.ForkList{}, &v1alpha1.Fork{}, changed)
	if err != nil {
		return err
	}
	shown := &treeChanges{tree: o, redraws: redraws(o.Out), height: height(o.Out)}
	for {
		select { // what changes from here on is seen by the next drawing
		case <-changed:
		default:
		}
		view, err := o.view(ctx, s, name, objectsOf[v1alpha1.Task](tasks), objectsOf[v1alpha1.Fork](forks))
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && shown.rows != nil: // all that was drawn is deleted
			fmt.Fprintln(o.ErrOut, err)
			return nil
		case err != nil:
			return err
		case len(view.roots) == 0:
			o.none(s)
			return nil
		}
		last := !slices.ContainsFunc(view.roots, (*taskNode).unfinished)
		if err := shown.show(view, last); err != nil || last {
			return err
		}
		if !waitFor(ctx, time.After(redrawEvery), changed) {
			return nil
		}
	}
}

// waitFor waits for a change, and until it may be drawn; it returns false if ctx ends first.
func waitFor(ctx context.Context, may <-chan time.Time, changed <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	}
	select {
	case <-ctx.Done():
		return false
	case <-may:
		return true
	}
}

// watchAll watches all objects of a kind in the namespace until ctx ends. The store has them as they are, from
// the beginning on, and changed, which has room for one, receives when that has changed.
func (s *session) watchAll(ctx context.Context, kind string, list client.ObjectList, object client.Object, changed chan<- struct{}) (cache.Store, error) {
	// The watch tries for ever: whoever may not list them is told so.
	if err := s.client.List(ctx, list, client.InNamespace(s.namespace), client.Limit(1)); err != nil {
		return nil, s.explain(err, kind, "")
	}
	store, informer, events, _ := watchtools.NewIndexerInformerWatcher(s.watcher(list, ""), object)
	context.AfterFunc(ctx, events.Stop)
	go func() {
		for range events.ResultChan() {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("the %ss of namespace %s were not listed: %w", kind, s.namespace, context.Cause(ctx))
	}
	return store, nil
}

// objectsOf returns copies of the objects in a store.
func objectsOf[T any](store cache.Store) (objects []T) {
	for _, object := range store.List() {
		if one, ok := object.(*T); ok {
			objects = append(objects, *one)
		}
	}
	return objects
}

// unfinished reports whether a task, or one below it, has not ended.
func (n *taskNode) unfinished() bool {
	return !n.ended || slices.ContainsFunc(n.Tasks, (*taskNode).unfinished)
}

// treeChanges shows a tree as it changes: in place of the former one on a terminal that redraws, or else
// with a line for each task of it that has changed.
type treeChanges struct {
	*tree
	redraws bool
	// height of the terminal in lines; 0 if it is unknown.
	height int
	// rows are what was printed last of each task, by its name, and of the contract; nil if nothing was.
	rows map[string]string
}

// show shows the tree as it is now. What is drawn last stays, and is not cut to the terminal's height.
func (c *treeChanges) show(v treeView, last bool) error {
	before := c.rows
	c.rows = map[string]string{}
	names := c.describe(v)
	if before != nil && !c.redraws {
		c.lines(names, before)
		return nil
	}
	var text bytes.Buffer
	if err := c.print(&text, v); err != nil {
		return err
	}
	drawn := text.String()
	if c.redraws {
		drawn = "\x1b[H\x1b[2J" + drawn // from the first line on, on an empty screen
		if !last {
			drawn = cut(drawn, c.height-1)
		}
	}
	_, err := fmt.Fprint(c.Out, drawn)
	return err
}

// cut leaves out the lines for which a terminal has no room.
func cut(text string, most int) string {
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	if most < 2 || len(lines) <= most {
		return text
	}
	left := len(lines) - most + 1
	return strings.Join(lines[:most-1], "") + fmt.Sprintf("… %s: the terminal has no room for them\n", plural(int64(left), "more line"))
}

// describe notes what there is to say of the contract and of each task, and returns their keys in the order in which
// they are drawn.
func (c *treeChanges) describe(v treeView) (keys []string) {
	add := func(key, row string) {
		keys = append(keys, key)
		c.rows[key] = row
	}
	if v.contract != nil && v.contract.Phase != "" {
		add("the contract", "contract "+oneLine(v.contract.Name)+": phase "+oneLine(v.contract.Phase))
	}
	var walk func(nodes []*taskNode)
	walk = func(nodes []*taskNode) {
		for _, n := range nodes {
			add(n.Name, c.describeTask(n))
			walk(n.Tasks)
		}
	}
	walk(v.roots)
	return keys
}

// describeTask says on one line what the row of a task says, but for its age.
func (c *treeChanges) describeTask(n *taskNode) string {
	parts := []string{
		oneLine(n.State), plural(n.Checkpoints, "checkpoint"), plural(n.Messages, "message"), count(n.InputTokens+n.OutputTokens) + " tokens",
	}
	if n.Phase != "" {
		parts = slices.Insert(parts, 1, "phase "+oneLine(n.Phase))
	}
	if n.CostMicroUSD != 0 {
		parts = append(parts, dollars(n.CostMicroUSD))
	}
	if len(n.Budgets) > 0 {
		parts = append(parts, "budget "+budgetCell(n.Budgets, c.output.value == "wide"))
	}
	return oneLine(n.Name) + ": " + strings.Join(parts, ", ")
}

// lines prints what differs from what was printed before.
func (c *treeChanges) lines(keys []string, before map[string]string) {
	now := c.stamp(c.clock())
	for _, key := range keys {
		if before[key] != c.rows[key] {
			fmt.Fprintln(c.Out, now+"  "+c.rows[key])
		}
	}
	var gone []string
	for key, row := range before {
		if _, there := c.rows[key]; !there {
			name, _, _ := strings.Cut(row, ": ")
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	for _, name := range gone {
		fmt.Fprintln(c.Out, now+"  "+name+": "+stateDeleted)
	}
}
