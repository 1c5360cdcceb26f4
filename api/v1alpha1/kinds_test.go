package v1alpha1_test

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestTheOtherKindsAreValidated(t *testing.T) {
	at := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	fork := func(name, source, variant string, more ...v1alpha1.ForkVariant) *v1alpha1.Fork {
		return &v1alpha1.Fork{ObjectMeta: at(name), Spec: v1alpha1.ForkSpec{
			SourceRef: v1alpha1.NameReference{Name: source}, Variants: append([]v1alpha1.ForkVariant{{Name: variant}}, more...),
		}}
	}
	for name, c := range map[string]struct {
		object   client.Object
		sentence string
	}{
		"a fork of itself":     {fork("f", "same", "same"), "a fork cannot have its source's name"},
		"a fork of elsewhere":  {fork("f", "other/same", "new"), "a reference contains no '/'"},
		"a long variant":       {fork("f", "source", strings.Repeat("v", 47)), "the name of a variant is too long"},
		"an odd variant":       {fork("f", "source", "Has.Dots"), "the name of a variant must be lower-case letters"},
		"a long fork":          {fork(strings.Repeat("f", 64), "source", "a"), "use at most 63 characters"},
		"a checkpoint of none": {&v1alpha1.Checkpoint{ObjectMeta: at("c")}, "spec.taskRef.name"},
		"a checkpoint's words": {&v1alpha1.Checkpoint{ObjectMeta: at("c"), Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "t"}, Message: "\x00"}}, "message must be plain text"},
		"a snapshot of two":    {snapshotOf(&v1alpha1.NameReference{Name: "c"}, ptr.To[int64](3)), "set at most one of checkpointRef, checkpointNumber and position"},
		"a snapshot of both":   {&v1alpha1.ConversationSnapshot{ObjectMeta: at("s"), Spec: v1alpha1.ConversationSnapshotSpec{TaskRef: v1alpha1.NameReference{Name: "t"}, CheckpointNumber: ptr.To[int64](3), Position: ptr.To[int64](3)}}, "set at most one of checkpointRef, checkpointNumber and position"},
		"a snapshot of 0":      {&v1alpha1.ConversationSnapshot{ObjectMeta: at("s"), Spec: v1alpha1.ConversationSnapshotSpec{TaskRef: v1alpha1.NameReference{Name: "t"}, CheckpointNumber: ptr.To[int64](0)}}, "should be greater than or equal to 1"},
		"a checkpoint 0":       {&v1alpha1.Checkpoint{ObjectMeta: at("c"), Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "t"}, Number: ptr.To[int64](0)}}, "should be greater than or equal to 1"},
		"a snapshot of none":   {snapshotOf(nil, ptr.To[int64](0)), "should be greater than or equal to 1"},
		"a snapshot elsewhere": {&v1alpha1.ConversationSnapshot{ObjectMeta: at("s"), Spec: v1alpha1.ConversationSnapshotSpec{TaskRef: v1alpha1.NameReference{Name: "o/t"}}}, "a reference contains no '/'"},
	} {
		t.Run(name, func(t *testing.T) {
			expectRefused(t, server.Client.Create(t.Context(), c.object, client.DryRunAll), c.sentence)
		})
	}
}

func snapshotOf(checkpoint *v1alpha1.NameReference, position *int64) *v1alpha1.ConversationSnapshot {
	return &v1alpha1.ConversationSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Spec: v1alpha1.ConversationSnapshotSpec{
		TaskRef: v1alpha1.NameReference{Name: "t"}, CheckpointRef: checkpoint, Position: position,
	}}
}

func TestSpecsOfTheOtherKindsAreImmutable(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "default", Name: "immutable"}
	checkpoint := &v1alpha1.Checkpoint{ObjectMeta: meta, Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "t"}}}
	snapshot := &v1alpha1.ConversationSnapshot{ObjectMeta: meta, Spec: v1alpha1.ConversationSnapshotSpec{TaskRef: v1alpha1.NameReference{Name: "t"}}}
	fork := &v1alpha1.Fork{ObjectMeta: meta, Spec: v1alpha1.ForkSpec{
		SourceRef: v1alpha1.NameReference{Name: "t"}, Variants: []v1alpha1.ForkVariant{{Name: "v"}},
	}}
	for _, object := range []client.Object{checkpoint, snapshot, fork} {
		if err := server.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	for _, keep := range []v1alpha1.CheckpointKeep{v1alpha1.CheckpointKept, v1alpha1.CheckpointByPolicy, ""} {
		checkpoint.Spec.Retention = keep
		must(t, server.Client.Update(t.Context(), checkpoint))
	}
	for _, branches := range [][]v1alpha1.CheckpointBranch{{{Name: "a"}, {Name: "try/b"}}, {{Name: "c"}}, nil} {
		checkpoint.Spec.Branches = branches
		must(t, server.Client.Update(t.Context(), checkpoint))
	}
	for _, change := range []func(*v1alpha1.CheckpointSpec){
		func(s *v1alpha1.CheckpointSpec) { s.Message = "other" },
		func(s *v1alpha1.CheckpointSpec) { s.TaskRef.Name = "other" },
		func(s *v1alpha1.CheckpointSpec) { s.Number = ptr.To[int64](3) },
	} {
		changed := checkpoint.DeepCopy()
		change(&changed.Spec)
		expectRefused(t, server.Client.Update(t.Context(), changed), "a Checkpoint's spec is immutable but for retention and branches")
	}
	checkpoint.Spec.Retention = "Perhaps"
	expectRefused(t, server.Client.Update(t.Context(), checkpoint), `supported values: "ByPolicy", "Keep"`)
	snapshot.Spec.CheckpointRef = &v1alpha1.NameReference{Name: "c"}
	expectRefused(t, server.Client.Update(t.Context(), snapshot), "a ConversationSnapshot's spec is immutable")
	forkIsImmutable(t, fork)
	fork.Spec.Adopt = v1alpha1.AdoptLatest
	must(t, server.Client.Update(t.Context(), fork))
}

// forkIsImmutable expects that no field of a Fork's spec but adopt may be changed.
func forkIsImmutable(t *testing.T, fork *v1alpha1.Fork) {
	t.Helper()
	changes := map[string]func(*v1alpha1.ForkSpec){
		"SourceRef":     func(s *v1alpha1.ForkSpec) { s.SourceRef.Name = "other" },
		"TaskUID":       func(s *v1alpha1.ForkSpec) { s.TaskUID = "uid" },
		"CheckpointRef": func(s *v1alpha1.ForkSpec) { s.CheckpointRef = &v1alpha1.NameReference{Name: "c"} },
		"At":            func(s *v1alpha1.ForkSpec) { s.At = &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](1)} },
		"Conversation":  func(s *v1alpha1.ForkSpec) { s.Conversation = v1alpha1.ConversationExclude },
		"Variants":      func(s *v1alpha1.ForkSpec) { s.Variants = append(s.Variants, v1alpha1.ForkVariant{Name: "w"}) },
		"RequestedBy":   func(s *v1alpha1.ForkSpec) { s.RequestedBy = "ann" },
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[v1alpha1.ForkSpec]()) {
		if field.Name == "Adopt" {
			continue
		}
		change, ok := changes[field.Name]
		if !ok {
			t.Errorf("nobody tries to change the field %s of a Fork: add it here, and to the rule of the type", field.Name)
			continue
		}
		changed := fork.DeepCopy()
		change(&changed.Spec)
		err := server.Client.Update(t.Context(), changed)
		if err == nil && equality.Semantic.DeepEqual(changed.Spec, fork.Spec) {
			fork.ResourceVersion = changed.ResourceVersion // admission has put the field back
			continue
		}
		expectRefused(t, err, "a Fork's spec is immutable but for adopt")
	}
}
