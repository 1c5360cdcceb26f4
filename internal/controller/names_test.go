package controller_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/retention"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// references sets every reference to a checkpoint in a struct, each to another value, and
// returns what it set by the path of the field.
func references(v reflect.Value, path string, set map[string]any) {
	for i := range v.NumField() {
		field, name := v.Field(i), path+"."+v.Type().Field(i).Name
		switch {
		case field.Type() == reflect.TypeFor[*v1alpha1.NameReference]() && strings.HasSuffix(name, "CheckpointRef"):
			field.Set(reflect.ValueOf(&v1alpha1.NameReference{Name: "c" + fmt.Sprint(len(set)+100)}))
			set[name] = field.Interface().(*v1alpha1.NameReference).Name
		case field.Type() == reflect.TypeFor[*int64]() && strings.HasSuffix(name, "CheckpointNumber"):
			field.Set(reflect.ValueOf(ptr.To(int64(len(set) + 100))))
			set[name] = *field.Interface().(*int64)
		case field.Kind() == reflect.Struct && field.Type().PkgPath() == v.Type().PkgPath():
			references(field, name, set)
		case field.Kind() == reflect.Pointer && field.Type().Elem().Kind() == reflect.Struct && field.Type().Elem().PkgPath() == v.Type().PkgPath():
			field.Set(reflect.New(field.Type().Elem()))
			references(field.Elem(), name, set)
		}
	}
}

// Whoever adds a field that names a checkpoint must add it to NamesIn as well: otherwise the
// policy deletes what a spec names.
func TestWhatASpecNamesIsNamed(t *testing.T) {
	task, fork, snapshot := builders.Task("work", builders.WithUID("uid-of-work")), &v1alpha1.Fork{}, &v1alpha1.ConversationSnapshot{}
	set := map[string]any{}
	references(reflect.ValueOf(&task.Spec).Elem(), "task", set)
	references(reflect.ValueOf(&fork.Spec).Elem(), "fork", set)
	references(reflect.ValueOf(&snapshot.Spec).Elem(), "snapshot", set)
	fork.Spec.SourceRef.Name, snapshot.Spec.TaskRef.Name = task.Name, task.Name
	task.Spec.StartFrom.TaskRef.Name = task.Name
	named := retention.NamesIn([]v1alpha1.Task{*task}, []v1alpha1.Fork{*fork}, []v1alpha1.ConversationSnapshot{*snapshot})
	for path, reference := range set {
		c := &v1alpha1.Checkpoint{Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: task.Name}}, Status: v1alpha1.CheckpointStatus{TaskUID: string(task.UID), Number: 1}}
		switch r := reference.(type) {
		case string:
			c.Name = r
		case int64:
			c.Status.Number = r
		}
		if !named.Has(c) {
			t.Errorf("the Checkpoint that %s names is not among the names", path)
		}
	}
	if len(set) < 5 {
		t.Errorf("only %d fields were found: %v", len(set), set)
	}
}
