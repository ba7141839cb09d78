//! Tensors whose elements do not lie one behind the other.

use burn::tensor::{Device, Tensor, TensorData};
use burn_nccl::{ReduceOp, functions};

use crate::{devices, on_ranks, values};

const ROWS: usize = 12;
const COLUMNS: usize = 10;

/// A name, and how to look at a `[ROWS, COLUMNS]` tensor; the first dimension is a multiple of 2 and 3.
type View = (&'static str, fn(Tensor<2>) -> Tensor<2>);

const VIEWS: [View; 8] = [
    ("contiguous", |table| table),
    ("transposed", |table| table.slice([0..ROWS, 0..6]).transpose()),
    ("columns", |table| table.slice([0..ROWS, 3..8])),
    ("rows", |table| table.slice([2..8, 0..COLUMNS])),
    ("flipped", |table| table.flip([0, 1])),
    ("broadcast rows", |table| table.slice([4..5, 0..COLUMNS]).expand([ROWS, COLUMNS])),
    ("broadcast columns", |table| table.slice([0..ROWS, 9..10]).expand([ROWS, 7])),
    ("turned and cut", |table| table.transpose().flip([1]).slice([2..8, 1..5])),
];

/// The view of `rank`: whole numbers, so that sums are exact.
fn view_of(view: View, rank: usize, device: &Device) -> Tensor<2> {
    let numbers = (0..ROWS * COLUMNS).map(|index| (index * (rank + 1)) as f32 - 100.0);
    let data = TensorData::new(numbers.collect::<Vec<_>>(), [ROWS, COLUMNS]);
    view.1(Tensor::from_data(data, device))
}

/// The elements of the view of `rank`, row by row, by arithmetic on its indices.
fn elements(view: View, rank: usize) -> Vec<f32> {
    let at = |row: usize, column: usize| ((row * COLUMNS + column) * (rank + 1)) as f32 - 100.0;
    let table = |rows: usize, columns: usize, place: &dyn Fn(usize, usize) -> (usize, usize)| {
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        places.map(|(row, column)| place(row, column)).map(|(row, column)| at(row, column)).collect()
    };
    match view.0 {
        "contiguous" => table(ROWS, COLUMNS, &|row, column| (row, column)),
        "transposed" => table(6, ROWS, &|row, column| (column, row)),
        "columns" => table(ROWS, 5, &|row, column| (row, column + 3)),
        "rows" => table(6, COLUMNS, &|row, column| (row + 2, column)),
        "flipped" => table(ROWS, COLUMNS, &|row, column| (ROWS - 1 - row, COLUMNS - 1 - column)),
        "broadcast rows" => table(ROWS, COLUMNS, &|_, column| (4, column)),
        "broadcast columns" => table(ROWS, 7, &|row, _| (row, 9)),
        "turned and cut" => table(6, 4, &|row, column| (ROWS - 1 - (column + 1), row + 2)),
        other => panic!("{other} is no view"),
    }
}

/// Runs `body` for every view, backend and number of ranks, with each rank's elements.
fn on_views(body: impl Fn(&burn_nccl::ProcessGroup, Tensor<2>, &[Vec<f32>], &str) + Sync) {
    for world_size in [1, 2, 3] {
        on_ranks(world_size, |group| {
            for device in devices() {
                for view in VIEWS {
                    let all: Vec<Vec<f32>> = (0..world_size).map(|rank| elements(view, rank)).collect();
                    let own = view_of(view, group.rank(), &device);
                    assert_eq!(values(own.clone()), all[group.rank()], "{} is another view", view.0);
                    body(&group, own, &all, view.0);
                }
            }
        });
    }
}

fn sums(all: &[Vec<f32>]) -> Vec<f32> {
    (0..all[0].len()).map(|index| all.iter().map(|elements| elements[index]).sum()).collect()
}

#[test]
fn views_are_reduced_as_they_look_and_not_as_they_lie() {
    on_views(|group, own, all, name| {
        let (shape, kept) = (own.dims(), own.clone());
        let sum = functions::all_reduce(own, ReduceOp::Sum, group).unwrap();
        assert_eq!((sum.dims(), values(sum)), (shape, sums(all)), "{name}");
        assert_eq!(values(kept), all[group.rank()], "the view that was reduced has changed: {name}");
    });
}

#[test]
fn views_are_broadcast_and_gathered_as_they_look() {
    on_views(|group, own, all, name| {
        let ([rows, columns], last) = (own.dims(), group.world_size() - 1);
        let root = functions::broadcast(own.clone(), last, group).unwrap();
        assert_eq!(values(root), all[last], "{name}");
        let gathered = functions::all_gather(own, group).unwrap();
        assert_eq!(gathered.dims(), [rows * group.world_size(), columns]);
        assert_eq!(values(gathered), all.concat(), "{name}");
    });
}

#[test]
fn views_are_reduced_and_shared_out_as_they_look() {
    on_views(|group, own, all, name| {
        let part = functions::reduce_scatter(own, ReduceOp::Sum, group).unwrap();
        let count = all[0].len() / group.world_size();
        let start = group.rank() * count;
        assert_eq!(values(part), sums(all)[start..start + count], "{name}");
    });
}

#[test]
fn a_view_in_a_gradient_keeps_its_place() {
    for device in devices() {
        on_ranks(2, |group| {
            let device = device.clone().autodiff();
            let table = view_of(VIEWS[0], group.rank(), &device).require_grad();
            let view = table.clone().transpose().slice([1..9, 0..ROWS]);
            let sum = functions::all_reduce(view, ReduceOp::Sum, &group).unwrap();
            let weights = Tensor::<1, burn::tensor::Int>::arange(0..8 * ROWS as i64, &device).float();
            let gradients = (sum * weights.reshape([8, ROWS])).sum().backward();
            let found = values(table.grad(&gradients).expect("it is tracked"));
            // Element (row, column) is element (column - 1, row) of the view, and both ranks ask for it.
            let expected = |index: usize| match (index / COLUMNS, index % COLUMNS) {
                (row, column @ 1..9) => 2.0 * ((column - 1) * ROWS + row) as f32,
                _ => 0.0,
            };
            assert_eq!(found, (0..ROWS * COLUMNS).map(expected).collect::<Vec<_>>());
        });
    }
}
