// Package matchers has Gomega matchers for the status of Clew's objects.
package matchers

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/onsi/gomega/gcustom"
	"github.com/onsi/gomega/types"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// HaveReason matches an object, or a list of conditions, whose condition of this type has this
// reason.
func HaveReason(condition, reason string) types.GomegaMatcher {
	return gcustom.MakeMatcher(func(actual any) (bool, error) {
		conditions, err := conditionsOf(actual)
		if err != nil {
			return false, err
		}
		found := meta.FindStatusCondition(conditions, condition)
		return found != nil && found.Reason == reason, nil
	}).WithTemplate("Expected the condition {{.Data.Condition}} {{.To}} have the reason {{.Data.Reason}}. The conditions are:\n{{call .Data.Describe .Actual}}").
		WithTemplateData(map[string]any{"Condition": condition, "Reason": reason, "Describe": describe})
}

// HaveCondition matches an object, or a list of conditions, whose condition of this type has
// this status.
func HaveCondition(condition string, status metav1.ConditionStatus) types.GomegaMatcher {
	return gcustom.MakeMatcher(func(actual any) (bool, error) {
		conditions, err := conditionsOf(actual)
		if err != nil {
			return false, err
		}
		found := meta.FindStatusCondition(conditions, condition)
		return found != nil && found.Status == status, nil
	}).WithTemplate("Expected the condition {{.Data.Condition}} {{.To}} be {{.Data.Status}}. The conditions are:\n{{call .Data.Describe .Actual}}").
		WithTemplateData(map[string]any{"Condition": condition, "Status": status, "Describe": describe})
}

// HaveCheckpointed matches a Task whose latest checkpoint has at least this number.
func HaveCheckpointed(number int64) types.GomegaMatcher {
	return gcustom.MakeMatcher(func(task *v1alpha1.Task) (bool, error) {
		latest := task.Status.LatestCheckpoint
		return latest != nil && latest.Number >= number, nil
	}).WithTemplate("Expected the task {{.To}} have taken checkpoint {{.Data}}. Its status says\n{{format .Actual.Status.LatestCheckpoint 1}}").
		WithTemplateData(number)
}

// conditionsOf returns the conditions of an object, or the given list.
func conditionsOf(actual any) ([]metav1.Condition, error) {
	if conditions, ok := actual.([]metav1.Condition); ok {
		return conditions, nil
	}
	// All kinds have them in the same field.
	text, err := json.Marshal(actual)
	if err != nil {
		return nil, fmt.Errorf("read the conditions of a %T: %w", actual, err)
	}
	var object struct {
		Status struct{ Conditions []metav1.Condition }
	}
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, fmt.Errorf("read the conditions of a %T: %w", actual, err)
	}
	return object.Status.Conditions, nil
}

// describe lists conditions, one per line.
func describe(actual any) string {
	conditions, err := conditionsOf(actual)
	if err != nil {
		return err.Error()
	}
	lines := make([]string, 0, len(conditions))
	for _, c := range conditions {
		lines = append(lines, fmt.Sprintf("    %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(lines, "\n")
}
